"""What accelerate's file says, as answers of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from trainwiz import vocabulary as words
from trainwiz.adoption.ledger import Ledger, leaves
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import BLOCKS, CLUSTER_KEYS, OLD_KEYS, SAGEMAKER_KEYS
from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.config import Accelerate
    from trainwiz.plan import Plan

_DEVICES = {
    "MULTI_GPU": "cuda",
    "DEEPSPEED": "cuda",
    "FSDP": "cuda",
    "MULTI_CPU": "cpu",
    "MULTI_NPU": "npu",
    "MULTI_XPU": "xpu",
    "MULTI_MLU": "mlu",
}
_HOMES = {
    "deepspeed_config": "DEEPSPEED",
    "fsdp_config": "FSDP",
    "megatron_lm_config": "MEGATRON_LM",
    "mpirun_config": "MULTI_CPU",
}
_NEVER_ACTS = {
    "rdzv_backend",
    "same_network",
    "enable_cpu_affinity",
    "downcast_bf16",
    "tpu_use_sudo",
    "use_cpu",
    "main_training_function",
    "machine_rank",
    "main_process_ip",
}
_NOTHING: tuple[Any, ...] = (None, False, "", "no", "NO", "none", [], {}, "static")
"""What says nothing in those keys that a plan has no place for."""


def read(ledger: Ledger, accelerate: Accelerate) -> None:
    """Enter what the plan has keys for."""
    _strategy(ledger, accelerate)
    _world(ledger, accelerate)
    _precision(ledger, accelerate)
    if accelerate.kind == "DEEPSPEED":
        _initialisation(ledger, accelerate)


def finish(ledger: Ledger, accelerate: Accelerate, plan: Plan) -> None:
    """Enter everything else in the file."""
    for path, value in leaves(accelerate.document):
        if not ledger.knows(accelerate, path):
            _finish_one(ledger, accelerate, path, value, plan)


def _strategy(ledger: Ledger, accelerate: Accelerate) -> None:
    kind, key = accelerate.kind, "strategy.kind"
    world = accelerate.world
    if kind in ("NO", "") or (kind.startswith("MULTI_") and kind in _DEVICES and world == 1):
        ledger.carry(accelerate, "distributed_type", key, "single")
    elif kind == "FSDP":
        ledger.carry(accelerate, "distributed_type", key, "fsdp")
    elif kind == "DEEPSPEED":
        ledger.carry(accelerate, "distributed_type", key, "deepspeed")
    elif kind in _DEVICES:
        ledger.carry(accelerate, "distributed_type", key, "ddp")
    else:
        ledger.leave(accelerate, "distributed_type", "unknown", say("trainwiz does not support this type"), key=key)
    if kind in _DEVICES:
        ledger.carry(accelerate, "distributed_type", "machine.device", _DEVICES[kind])
    if accelerate.get("use_cpu") is True and kind in ("NO", "", "MULTI_CPU"):
        ledger.carry(accelerate, "use_cpu", "machine.device", "cpu")


def _world(ledger: Ledger, accelerate: Accelerate) -> None:
    alone = accelerate.kind in ("NO", "")
    given = accelerate.get("num_processes")
    if alone and type(given) is int and given > 1:
        ledger.leave(
            accelerate,
            "num_processes",
            "inert",
            say("distributed_type NO starts only one process"),
            key="machine.num_processes",
        )
        ledger.carry(accelerate, "distributed_type", "machine.num_processes", 1, say("one process"))
    elif accelerate.world is not None:
        ledger.carry(accelerate, "num_processes", "machine.num_processes", accelerate.world)
    several = accelerate.machines > 1 and not alone
    if several or not accelerate.has("num_machines"):
        ledger.carry(
            accelerate,
            "num_machines",
            "machine.num_machines",
            accelerate.machines if several else 1,
            None if accelerate.has("num_machines") else say("not set; defaults to 1"),
        )
    elif accelerate.machines == 1:
        ledger.carry(accelerate, "num_machines", "machine.num_machines", 1)
    address = accelerate.get("main_process_ip")
    if several and isinstance(address, str) and address:
        ledger.carry(accelerate, "main_process_ip", "machine.main_process_ip", address)
    port = accelerate.get("main_process_port")
    if type(port) is int and 0 <= port <= 65535:
        ledger.carry(accelerate, "main_process_port", "machine.main_process_port", port)


def _precision(ledger: Ledger, accelerate: Accelerate) -> None:
    key, path = "precision.mixed_precision", "mixed_precision"
    value = accelerate.get(path)
    value = "no" if value is False else value.lower() if isinstance(value, str) else value
    if accelerate.deepspeed_file and value is None:
        return  # the file that it names says so
    if value in get_args(words.MixedPrecision):
        ledger.carry(accelerate, path, key, value)
    elif accelerate.get("fp16") is True:
        ledger.carry(accelerate, "fp16", key, "fp16")
    elif value is None and accelerate.kind:
        ledger.carry(accelerate, path, key, "no", say("not set; accelerate defaults to no"))


def _initialisation(ledger: Ledger, accelerate: Accelerate) -> None:
    path = "deepspeed_config.zero3_init_flag"
    value = accelerate.get(path)
    if isinstance(value, bool):
        ledger.carry(accelerate, path, "strategy.zero3_init", value)
    for name in ("deepspeed_config_file",):
        if accelerate.has(f"deepspeed_config.{name}"):
            ledger.same(accelerate, f"deepspeed_config.{name}")


def _finish_one(ledger: Ledger, accelerate: Accelerate, path: str, value: Any, plan: Plan) -> None:
    top, _, name = path.partition(".")
    if top in _HOMES and accelerate.kind != _HOMES[top] and not (top == "mpirun_config" and accelerate.kind == "NO"):
        if not name and value in ({}, None):
            ledger.same(accelerate, path)
            return
        ledger.leave(accelerate, path, "inert", say("{block} only applies under {kind}", block=top, kind=_HOMES[top]))
        return
    known = CLUSTER_KEYS | SAGEMAKER_KEYS | OLD_KEYS
    if top not in known:
        near = nearest(top, known)
        ledger.leave(
            accelerate,
            path,
            "lost",
            say("accelerate has no such key; did you mean {near}?", near=near)
            if near
            else say("accelerate has no such key"),
        )
        return
    if name and _unknown_in_block(top, name):
        prefix, names = BLOCKS[top]
        near = nearest(name, names) or nearest(f"{prefix}{name}", names)
        ledger.leave(
            accelerate,
            path,
            "inert",
            say("accelerate ignores it; did you mean {near}?", near=near) if near else say("accelerate ignores it"),
        )
        return
    _judge(ledger, accelerate, path, value, plan)


def _judge(ledger: Ledger, accelerate: Accelerate, path: str, value: Any, plan: Plan) -> None:
    top, _, name = path.partition(".")
    if _says_nothing(top, name, value, accelerate):
        ledger.same(accelerate, path)
    elif top == "machine_rank" and accelerate.machines > 1:
        ledger.leave(
            accelerate,
            path,
            "launch",
            say("set it on each machine: trainwiz launch --machine-rank {rank}", rank=str(value)),
        )
    elif top == "gpu_ids":
        ledger.leave(
            accelerate,
            path,
            "launch",
            say("run: CUDA_VISIBLE_DEVICES={ids} trainwiz launch", ids=str(value).replace(" ", "")),
        )
    elif top == "debug":
        ledger.leave(accelerate, path, "launch", say("run: ACCELERATE_DEBUG_MODE=true trainwiz launch"))
    elif top in _NEVER_ACTS:
        ledger.leave(accelerate, path, "inert", say("accelerate does not read it in this configuration"))
    elif top.startswith(("tpu_", "command")) and accelerate.kind != "XLA":
        ledger.leave(accelerate, path, "inert", say("{block} only applies under {kind}", block=top, kind="XLA"))
    elif top == "mixed_precision":
        ledger.leave(accelerate, path, "lost", say("already set by another value"), key="precision.mixed_precision")
    elif top == "mpirun_config":
        ledger.leave(accelerate, path, "lost", say("trainwiz starts the ranks itself, without MPI"))
    elif top == "fp8_config" and plan.precision.mixed_precision != "fp8":
        ledger.leave(accelerate, path, "inert", say("fp8_config only applies with mixed_precision fp8"))
    elif top == "compute_environment" or top in SAGEMAKER_KEYS - CLUSTER_KEYS:
        ledger.leave(accelerate, path, "lost", say("projects start on the machine itself, not through SageMaker"))
    elif name in (
        "deepspeed_hostfile",
        "deepspeed_inclusion_filter",
        "deepspeed_exclusion_filter",
        "deepspeed_multinode_launcher",
    ):
        ledger.leave(accelerate, path, "launch", say("several machines: run trainwiz launch on each of them"))
    else:
        ledger.leave(accelerate, path, "lost", say("the generated loop has no equivalent"))


def _says_nothing(top: str, name: str, value: Any, accelerate: Accelerate) -> bool:
    """Whether a value is what counts without it."""
    if top == "parallelism_config":
        return value in (1, None) or not name
    if top == "compute_environment":
        return bool(value == "LOCAL_MACHINE")
    if top == "main_training_function":
        return bool(value == "main")
    if top == "machine_rank":
        return accelerate.machines == 1 and value == 0
    if top == "gpu_ids":
        return str(value) == "all" or value is None
    if top == "same_network":
        return True  # on or off, it never acts
    if top == "dynamo_config" and str(accelerate.get("dynamo_config.dynamo_backend", "NO")).upper() == "NO":
        return True
    if name == "deepspeed_multinode_launcher":
        return accelerate.machines == 1 or value == "standard"
    if top == "fp8_config":
        return False
    return value in _NOTHING


def _unknown_in_block(block: str, name: str) -> bool:
    if block not in BLOCKS:
        return False
    prefix, names = BLOCKS[block]
    key = name.split(".")[0]
    # The short form without its prefix counts, but not in parallelism_config.
    return key not in names and not (prefix and block != "parallelism_config" and f"{prefix}{key}" in names)
