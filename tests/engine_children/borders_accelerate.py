"""What accelerate does with values at the border of each key: the launch, torchrun's arguments, a rank's plugins.

Files in, as JSON; out comes what each stopped with, empty where none did.
"""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import configurations
import replays
import yaml
from accelerate.parallelism_config import ParallelismConfig
from torch.distributed import run as torchrun


def stops(values: dict[str, Any]) -> str:
    for name in [name for name in os.environ if name.startswith(configurations.OURS)]:
        del os.environ[name]
    Path("a.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    try:
        environ = replays.accelerate("a.yaml")
        if any(name.startswith("PARALLELISM_") for name in environ):
            is_fsdp2 = environ.get("FSDP_VERSION") == "2"
            seen = types.SimpleNamespace(num_processes=4, multi_device=True, is_fsdp2=is_fsdp2, distributed_type="")
            ParallelismConfig()._validate_accelerator(seen)
        if values.get("distributed_type") in ("MULTI_GPU", "FSDP", "DEEPSPEED"):
            torchrun.config_from_args(configurations.as_torchrun_gets_it("a.yaml", None, 29511))
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return "" if configurations.NO_DEVICE in message else message
    return ""


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    found = [stops(values) for values in json.load(sys.stdin)]
    sys.stderr.flush()
    print("\n" + json.dumps(found))
