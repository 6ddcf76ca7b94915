"""The environment that `accelerate launch` would set for its settings, and torch.distributed's contract.

Follows accelerate 1.15's `utils.launch`: prepare_simple_launcher_cmd_env, prepare_multi_gpu_env and
prepare_deepspeed_cmd_env; a test runs those and compares. Where trainwiz differs on purpose, it says so here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwiz.command.types import Rank
from trainwiz.engines.accelerate import DEEPSPEED_VARIABLES, DYNAMO_VARIABLES, FP8_VARIABLES, FSDP_DEFAULTS

_FSDP_AS_WRITTEN = {
    "fsdp_version",
    "fsdp_sharding_strategy",
    "fsdp_min_num_params",
    "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_backward_prefetch",
    "fsdp_state_dict_type",
}
_VERBATIM = {"deepspeed_config_file", "deepspeed_moe_layer_cls_names"}


def launcher(settings: Mapping[str, Any]) -> str:
    """Which of accelerate's launchers the settings choose: simple (one process), torchrun or deepspeed."""
    match settings["distributed_type"]:
        case "NO" | "MULTI_CPU":
            return "simple"
        case "DEEPSPEED":
            return "deepspeed"
    return "torchrun"


# docs/decisions/launching.md: The ranks' environment is accelerate's, with four differences
def shared(settings: Mapping[str, Any], *, threads: int | None, folder: str, pythonpath: str) -> dict[str, str]:
    """What every rank gets. `pythonpath` is PYTHONPATH as it is now; `threads` None leaves OMP_NUM_THREADS alone."""
    environ = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    precision = str(settings.get("mixed_precision") or "no").lower()
    environ["ACCELERATE_MIXED_PRECISION"] = precision
    if precision == "fp8":
        environ |= FP8_VARIABLES
    if settings.get("debug"):
        environ["ACCELERATE_DEBUG_MODE"] = "true"
    match launcher(settings):
        case "simple":
            return environ | DYNAMO_VARIABLES | _simple(settings)
        case "deepspeed":
            return environ | _deepspeed(settings, folder, pythonpath)
    return environ | DYNAMO_VARIABLES | (_fsdp(settings) if settings["distributed_type"] == "FSDP" else {})


def ranks(*, world: int, address: str, port: int) -> tuple[Rank, ...]:
    """One machine's ranks with torch.distributed's contract, as torchrun sets it.

    Left out: TORCHELASTIC_RUN_ID and its kind, which mean that an agent is there. TORCHELASTIC_USE_AGENT_STORE is
    set to False, since inherited from a surrounding torchrun it would keep rank 0 from opening the store.
    Source: torch.distributed.elastic.agent.server.local_elastic_agent, `_start_workers` (torch 2.13).
    """
    common = {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    return tuple(
        Rank(rank=r, environ={**common, "RANK": str(r), "LOCAL_RANK": str(r), "ROLE_RANK": str(r)})
        for r in range(world)
    )


def _simple(settings: Mapping[str, Any]) -> dict[str, str]:
    several = settings["distributed_type"] == "MULTI_CPU"
    use_cpu = bool(settings.get("use_cpu")) or several
    environ = {"ACCELERATE_USE_CPU": str(use_cpu)}
    if use_cpu:
        environ["KMP_BLOCKTIME"] = "1"
    if use_cpu and not several:
        # For several ranks accelerate sets it too, which pins the threads of all of them to the same cores.
        environ["KMP_AFFINITY"] = "granularity=fine,compact,1,0"
    return environ


def _fsdp(settings: Mapping[str, Any]) -> dict[str, str]:
    environ = {"ACCELERATE_USE_FSDP": "true"}
    for key, value in {**FSDP_DEFAULTS, **(settings.get("fsdp_config") or {})}.items():
        name = "FSDP_TRANSFORMER_CLS_TO_WRAP" if key.endswith("layer_cls_to_wrap") else key.upper()
        if value is not None:
            environ[name] = str(value) if key in _FSDP_AS_WRITTEN else str(value).lower()
    return environ


def _deepspeed(settings: Mapping[str, Any], folder: str, pythonpath: str) -> dict[str, str]:
    values = settings.get("deepspeed_config") or {}
    fields = [*values, *(["mixed_precision"] if settings.get("mixed_precision") else [])]
    environ = {
        # The ranks run in the folder, so that a relative one is `.` to them.
        "PYTHONPATH": ":".join([*(p for p in pythonpath.split(":") if p), folder if folder.startswith("/") else "."]),
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower(),
    }
    for key, name in DEEPSPEED_VARIABLES.items():
        if values.get(key) is not None:
            environ[name] = str(values[key]) if key in _VERBATIM else str(values[key]).lower()
    return environ
