"""Run in a child: what accelerate's own launcher makes of each YAML. JSON lists in and out."""

import contextlib
import json
import os
import sys

import psutil
from accelerate.commands import launch
from accelerate.utils import launch as preparation

PREPARE = {
    "deepspeed": preparation.prepare_deepspeed_cmd_env,
    "torchrun": preparation.prepare_multi_gpu_env,
    "simple": preparation.prepare_simple_launcher_cmd_env,
}


def looked_at(parser, path, options):
    args = parser.parse_args(["--config_file", path, *options, "train.py", "--seed", "1"])
    args, defaults, precision_from_file = launch._validate_launch_command(args)
    kind = "deepspeed" if args.use_deepspeed else "torchrun" if args.use_fsdp or args.multi_gpu else "simple"
    if kind == "deepspeed":
        fields = list(defaults.deepspeed_config) + (["mixed_precision"] if precision_from_file else [])
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    prepared = PREPARE[kind](args)
    environ = prepared if isinstance(prepared, dict) else prepared[1]
    added = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    names = ("nnodes", "node_rank", "nproc_per_node", "master_port", "rdzv_endpoint", "rdzv_backend")
    torchrun = {name: str(getattr(args, name)) for name in names if getattr(args, name, None) is not None}
    return {"launcher": kind, "environ": added, "torchrun": torchrun}


def main():
    for name in ("OMP_NUM_THREADS", "PYTHONPATH"):  # what the launcher adds is compared
        os.environ.pop(name, None)
    cores = int(os.environ.pop("TEST_CORES"))
    psutil.cpu_count = lambda logical=True: cores  # noqa: ARG005
    preparation.is_fp8_available = lambda: True  # rendering for another machine than this one
    preparation.is_port_in_use = lambda port: False  # noqa: ARG005
    parser, results = launch.launch_command_parser(), []
    for case in json.load(sys.stdin):
        os.chdir(case["folder"])
        with contextlib.redirect_stdout(sys.stderr):
            try:
                results.append(looked_at(parser, case["file"], case["options"]))
            except Exception as error:
                results.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(results, sys.stdout)


main()
