"""What accelerate's file says, as answers of a plan."""

from __future__ import annotations

from typing import Any, get_args

from trainwiz import vocabulary as words
from trainwiz.adoption.ledger import Page, leaves
from trainwiz.config import Accelerate
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import BLOCKS, CLUSTER_KEYS, OLD_KEYS, SAGEMAKER_KEYS
from trainwiz.engines.names import names
from trainwiz.message import say
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
_STRATEGIES = {"": "single", "NO": "single", "FSDP": "fsdp", "DEEPSPEED": "deepspeed"}
_HOMES = {
    "deepspeed_config": "DEEPSPEED",
    "fsdp_config": "FSDP",
    "megatron_lm_config": "MEGATRON_LM",
    "mpirun_config": "MULTI_CPU",
}
_NEVER_ACTS = names(
    """
    downcast_bf16 enable_cpu_affinity machine_rank main_process_ip main_training_function rdzv_backend same_network
    tpu_use_sudo use_cpu
    """
)
_OTHER_MACHINES = names(
    """
    deepspeed_exclusion_filter deepspeed_hostfile deepspeed_inclusion_filter deepspeed_multinode_launcher
    """
)
_DEFAULT_WORDS = {"compute_environment": "LOCAL_MACHINE", "main_training_function": "main"}
_NOTHING: tuple[Any, ...] = (None, False, "", "no", "NO", "none", [], {}, "static")
"""Values that have no effect, of keys that a plan has no place for."""


def read(page: Page, accelerate: Accelerate) -> None:
    """Enter what the plan has keys for."""
    _strategy(page, accelerate)
    _world(page, accelerate)
    _precision(page, accelerate)
    _compiler(page, accelerate)
    if accelerate.kind == "DEEPSPEED":
        _initialization(page, accelerate)


def finish(page: Page, accelerate: Accelerate, plan: Plan) -> None:
    """Enter everything else in the file."""
    for path, value in leaves(accelerate.document):
        if not page.knows(path):
            _finish_one(page, accelerate, path, value, plan)


def _strategy(page: Page, accelerate: Accelerate) -> None:
    kind, key = accelerate.kind, "strategy.kind"
    alone = kind.startswith("MULTI_") and kind in _DEVICES and accelerate.world == 1
    strategy = "single" if alone else _STRATEGIES.get(kind, "ddp" if kind in _DEVICES else None)
    if strategy:
        page.carry("distributed_type", key, strategy)
    else:
        page.leave("distributed_type", "unknown", say("trainwiz does not support this type"), key=key)
    if kind in _DEVICES:
        page.carry("distributed_type", "machine.device", _DEVICES[kind])
    if accelerate.get("use_cpu") is True and kind in ("NO", "", "MULTI_CPU"):
        page.carry("use_cpu", "machine.device", "cpu")


def _world(page: Page, accelerate: Accelerate) -> None:
    alone = accelerate.kind in ("NO", "")
    given = accelerate.get("num_processes")
    if alone and type(given) is int and given > 1:
        why = say("distributed_type NO starts only one process")
        page.leave("num_processes", "inert", why, key="machine.num_processes")
        page.carry("distributed_type", "machine.num_processes", 1, say("one process"))
    elif accelerate.world is not None:
        page.carry("num_processes", "machine.num_processes", accelerate.world)
    several = accelerate.machines > 1 and not alone
    given = accelerate.has("num_machines")
    if several or accelerate.machines == 1 or not given:
        machines = accelerate.machines if several else 1
        page.carry("num_machines", "machine.num_machines", machines, None if given else say("not set; defaults to 1"))
    address = accelerate.get("main_process_ip")
    if several and isinstance(address, str) and address:
        page.carry("main_process_ip", "machine.main_process_ip", address)
    port = accelerate.get("main_process_port")
    if type(port) is int and 0 <= port <= 65535:
        page.carry("main_process_port", "machine.main_process_port", port)


def _precision(page: Page, accelerate: Accelerate) -> None:
    key, path = "precision.mixed_precision", "mixed_precision"
    value = accelerate.get(path)
    value = "no" if value is False else value.lower() if isinstance(value, str) else value
    if accelerate.deepspeed_file and value is None:
        return  # the file that it names says so
    if value in get_args(words.MixedPrecision):
        page.carry(path, key, value)
    elif accelerate.get("fp16") is True:
        page.carry("fp16", key, "fp16")
    elif value is None and accelerate.kind:
        page.carry(path, key, "no", say("not set; accelerate defaults to no"))


def _compiler(page: Page, accelerate: Accelerate) -> None:
    """Inductor in its usual mode, which is what the generated loop compiles each layer with."""
    path = "dynamo_config.dynamo_backend"
    settings = {key.removeprefix("dynamo_"): value for key, value in accelerate.section("dynamo_config").items()}
    usual = settings.get("mode", "default") in ("default", None) and not settings.get("use_fullgraph")
    dynamic = settings.get("use_dynamic")
    if accelerate.kind in ("DEEPSPEED", "XLA") or str(settings.get("backend", "NO")).upper() != "INDUCTOR":
        return
    if usual and not dynamic:
        whole = say("accelerate compiles the whole model; train.py compiles each layer separately")
        page.carry(path, "model.compile", True, None if settings.get("use_regional_compilation") else whole)
        for name in ("mode", "use_fullgraph", "use_dynamic", "use_regional_compilation"):
            page.same(f"dynamo_config.dynamo_{name}")


def _initialization(page: Page, accelerate: Accelerate) -> None:
    path = "deepspeed_config.zero3_init_flag"
    value = accelerate.get(path)
    if isinstance(value, bool):
        page.carry(path, "strategy.zero3_init", value)
    if accelerate.has("deepspeed_config.deepspeed_config_file"):
        page.same("deepspeed_config.deepspeed_config_file")


def _finish_one(page: Page, accelerate: Accelerate, path: str, value: Any, plan: Plan) -> None:
    top, _, name = path.partition(".")
    if top in _HOMES and accelerate.kind != _HOMES[top] and not (top == "mpirun_config" and accelerate.kind == "NO"):
        if not name and value in ({}, None):
            page.same(path)
            return
        page.leave(path, "inert", say("{block} only applies under {kind}", block=top, kind=_HOMES[top]))
        return
    known = CLUSTER_KEYS | SAGEMAKER_KEYS | OLD_KEYS
    if top not in known:
        near = nearest(top, known)
        why = say("accelerate has no such key; did you mean {near}?", near=near)
        page.leave(path, "lost", why if near else say("accelerate has no such key"))
    elif name and _unknown_in_block(top, name):
        prefix, others = BLOCKS[top]
        near = nearest(name, others) or nearest(f"{prefix}{name}", others)
        why = say("accelerate ignores it; did you mean {near}?", near=near)
        page.leave(path, "inert", why if near else say("accelerate ignores it"))
    else:
        _judge(page, accelerate, path, value, plan)


def _judge(page: Page, accelerate: Accelerate, path: str, value: Any, plan: Plan) -> None:
    top, _, name = path.partition(".")
    if _says_nothing(top, name, value, accelerate):
        page.same(path)
    elif top == "machine_rank" and accelerate.machines > 1:
        why = say("set it on each machine: trainwiz launch --machine-rank {rank}", rank=str(value))
        page.leave(path, "launch", why)
    elif top == "gpu_ids":
        ids = str(value).replace(" ", "")
        page.leave(path, "launch", say("run: CUDA_VISIBLE_DEVICES={ids} trainwiz launch", ids=ids))
    elif top == "debug":
        page.leave(path, "launch", say("run: ACCELERATE_DEBUG_MODE=true trainwiz launch"))
    elif top in _NEVER_ACTS:
        page.leave(path, "inert", say("accelerate does not read it in this configuration"))
    elif top.startswith(("tpu_", "command")) and accelerate.kind != "XLA":
        page.leave(path, "inert", say("{block} only applies under {kind}", block=top, kind="XLA"))
    elif top == "mixed_precision":
        page.leave(path, "lost", say("already set by another value"), key="precision.mixed_precision")
    elif top == "mpirun_config":
        page.leave(path, "lost", say("trainwiz starts the ranks itself, without MPI"))
    elif top == "fp8_config" and plan.precision.mixed_precision != "fp8":
        page.leave(path, "inert", say("fp8_config only applies with mixed_precision fp8"))
    elif top == "compute_environment" or top in SAGEMAKER_KEYS - CLUSTER_KEYS:
        page.leave(path, "lost", say("projects run directly on the machine, not through SageMaker"))
    elif name in _OTHER_MACHINES:
        page.leave(path, "launch", say("several machines: run trainwiz launch on each of them"))
    else:
        page.leave(path, "lost", say("the generated loop has no equivalent"))


def _says_nothing(top: str, name: str, value: Any, accelerate: Accelerate) -> bool:
    """Whether a value is the default."""
    if top == "parallelism_config":
        return value in (1, None) or not name
    if top in _DEFAULT_WORDS:
        return bool(value == _DEFAULT_WORDS[top])
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
    prefix, others = BLOCKS[block]
    key = name.split(".")[0]
    # The short form without its prefix counts, but not in parallelism_config.
    return key not in others and not (prefix and block != "parallelism_config" and f"{prefix}{key}" in others)
