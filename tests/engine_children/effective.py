"""Run in a child: configurations as the engines read them. JSON lists in and out.

A case is an accelerate file, or a DeepSpeed configuration, or both; the answer holds the variables that accelerate's
launcher sets, and every value that DeepSpeed's own classes take, defaults included.
"""

import contextlib
import json
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import psutil
from accelerate.commands import launch
from accelerate.utils import DeepSpeedPlugin
from accelerate.utils import launch as preparation

PREPARE = {
    "deepspeed": preparation.prepare_deepspeed_cmd_env,
    "torchrun": preparation.prepare_multi_gpu_env,
    "simple": preparation.prepare_simple_launcher_cmd_env,
}
TORCHRUN = ("nnodes", "nproc_per_node", "master_port", "rdzv_endpoint")


def launched(parser, path):
    args = parser.parse_args(["--config_file", path, "--machine_rank", "0", "train.py"])
    args, defaults, precision_from_file = launch._validate_launch_command(args)
    kind = "deepspeed" if args.use_deepspeed else "torchrun" if args.use_fsdp or args.multi_gpu else "simple"
    if kind == "deepspeed":
        fields = list(defaults.deepspeed_config) + (["mixed_precision"] if precision_from_file else [])
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    prepared = PREPARE[kind](args)
    environ = prepared if isinstance(prepared, dict) else prepared[1]
    added = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    torchrun = {name: str(getattr(args, name)) for name in TORCHRUN if getattr(args, name, None) is not None}
    return {"launcher": kind, "environ": added, "torchrun": torchrun}


def plain(value):
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (int, float, bool, str, type(None))):
        return value
    return plain(vars(value)) if hasattr(value, "__dict__") else str(value)


def read_by_deepspeed(case, environ):
    """A configuration, or accelerate's block, through accelerate's plugin and DeepSpeed's classes, for one rank."""
    from deepspeed.runtime.config import DeepSpeedConfig

    for name in [n for n in os.environ if n.startswith("ACCELERATE_")]:
        del os.environ[name]
    if case.get("block"):
        os.environ.update({k: v for k, v in environ.items() if k.startswith("ACCELERATE_")})
        plugin = DeepSpeedPlugin()
    else:
        plugin = DeepSpeedPlugin(hf_ds_config=case["deepspeed"])
    plugin.set_mixed_precision(case.get("precision", "no"))
    # As in Accelerator._prepare_deepspeed, with the batch of the plan in the place of the script's.
    micro, accumulation = case["micro"], case["accumulation"]
    plugin.deepspeed_config["zero_allow_untested_optimizer"] = True
    plugin.fill_match("gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=accumulation)
    filled = {
        "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": micro,
        "train_batch_size": micro * plugin.get_value("gradient_accumulation_steps"),
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
    }
    plugin.deepspeed_config_process(must_match=False, **filled)
    values = {k: v for k, v in plugin.deepspeed_config.items() if k not in ("optimizer", "scheduler")}
    held = plain(vars(DeepSpeedConfig(values)))
    held["zero3_init_flag"] = plugin.zero3_init_flag
    return {k: v for k, v in held.items() if k != "_param_dict"}


def looked_at(parser, case):
    result = {"launch": None, "deepspeed": None}
    try:
        if case.get("accelerate"):
            result["launch"] = launched(parser, case["accelerate"])
    except Exception as error:
        result["launch"] = {"error": f"{type(error).__name__}: {error}"}
    try:
        if case.get("deepspeed") or case.get("block"):
            result["deepspeed"] = read_by_deepspeed(case, (result["launch"] or {}).get("environ", {}))
    except Exception as error:
        result["deepspeed"] = {"error": f"{type(error).__name__}: {error}"}
    return result


def main():
    psutil.cpu_count = lambda logical=True: 16  # noqa: ARG005
    preparation.is_fp8_available = lambda: True
    preparation.is_port_in_use = lambda port: False  # noqa: ARG005
    parser, cases = launch.launch_command_parser(), json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        results = [looked_at(parser, case) for case in cases]
    print()
    print(json.dumps(results, default=str))


main()
