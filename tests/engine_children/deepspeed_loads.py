"""Run in a child: each DeepSpeed JSON through DeepSpeed's config class and accelerate's plugin. JSON in and out."""

import contextlib
import json
import os
import sys

os.environ.update(DS_ACCELERATOR="cpu")

with contextlib.redirect_stdout(sys.stderr):
    from accelerate.utils import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig


def looked_at(path, fields):
    read = DeepSpeedConfig(path)
    zero = read.zero_config.model_dump(mode="json", by_alias=True)
    # As `accelerate launch` hands the file over.
    os.environ.update(ACCELERATE_DEEPSPEED_CONFIG_FILE=path, ACCELERATE_CONFIG_DS_FIELDS=fields)
    plugin = DeepSpeedPlugin()
    return {
        "zero": {key: value for key, value in zero.items() if value is not None},
        "batch": [read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps],
        "clipping": read.gradient_clipping,
        "plugin": {k: v for k, v in plugin.deepspeed_config.items() if k != "steps_per_print"},
        "plugin_clipping": plugin.gradient_clipping,
        "plugin_stage": plugin.zero_stage,
    }


def main():
    results = []
    for case in json.load(sys.stdin):
        with contextlib.redirect_stdout(sys.stderr):
            try:
                results.append(looked_at(case["file"], case["fields"]))
            except Exception as error:
                results.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(results, sys.stdout)


main()
