"""The command for an accelerate configuration that trainwiz did not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trainwiz.command import environment
from trainwiz.command.plans import peer_to_peer, threads_per_rank
from trainwiz.command.types import Command, Rank
from trainwiz.engines.accelerate import DEEPSPEED_VARIABLES, FSDP_DEFAULTS

if TYPE_CHECKING:
    from trainwiz.machine import Machine

_NOTHING: Mapping[str, str] = MappingProxyType({})
DIRECT_TYPES = {"NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED", "FSDP"}
"""Types of accelerate whose ranks can be started directly."""
# Keys whose effect on one machine is known in full: the first are read here, the second do nothing there.
_READ = {
    "compute_environment",
    "distributed_type",
    "num_processes",
    "num_machines",
    "mixed_precision",
    "use_cpu",
    "debug",
    "gpu_ids",
    "main_process_port",
    "deepspeed_config",
    "fsdp_config",
}
_WITHOUT_EFFECT = {
    "machine_rank",
    "main_process_ip",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "downcast_bf16",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_env",
    "enable_cpu_affinity",
}
_DEEPSPEED_WITHOUT_EFFECT = {
    "deepspeed_multinode_launcher",
    "deepspeed_hostfile",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
}


def for_accelerate_config(
    config: Mapping[str, Any],
    *,
    config_path: str,
    script: str,
    arguments: Sequence[str] = (),
    python: str,
    folder: str = ".",
    port: int | None = None,
    machine: Machine | None = None,
    inherited: Mapping[str, str] = _NOTHING,
    options: Sequence[str] = (),
) -> Command:
    """`accelerate launch` on the configuration, or its ranks directly where the outcome is known to be the same.

    `options` are for `accelerate launch`, where it is used.
    One case goes directly although accelerate would do otherwise: several CPU ranks, which it runs as one process.
    """
    settings = _normalized(config)
    if not _is_known(settings):
        return Command(
            argv=(
                python,
                "-m",
                "accelerate.commands.launch",
                "--config_file",
                config_path,
                *options,
                script,
                *arguments,
            ),
            environ={},
            ranks=(Rank(rank=0),),
            cwd=folder,
            launcher="accelerate",
        )
    return Command(
        argv=(python, "-u", script, *arguments),
        environ=_environ(settings, folder=folder, machine=machine, inherited=inherited),
        ranks=_ranks(settings, port),
        cwd=folder,
    )


def _normalized(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with accelerate's defaults and without YAML's traps (an unquoted NO is false there)."""
    settings = {key: value for key, value in config.items() if value not in (None, {})}
    settings.setdefault("compute_environment", "LOCAL_MACHINE")
    if settings.get("distributed_type") is False:
        settings["distributed_type"] = "NO"
    if settings.get("mixed_precision") is False:
        settings["mixed_precision"] = "no"
    settings.setdefault("distributed_type", "")
    settings.setdefault("num_machines", 1)
    settings.setdefault("num_processes", 1 if settings["distributed_type"] == "NO" else -1)
    return settings


def _is_known(settings: Mapping[str, Any]) -> bool:
    """Whether everything in normalized settings is understood, so that the ranks can be started directly."""
    kind = settings["distributed_type"]
    count = settings["num_processes"]
    if kind not in DIRECT_TYPES or settings["compute_environment"] != "LOCAL_MACHINE":
        return False
    if settings["num_machines"] != 1 or type(count) is not int or count < 1 or (kind == "NO" and count > 1):
        return False
    if set(settings) - _READ - _WITHOUT_EFFECT or settings.get("enable_cpu_affinity"):
        return False
    if str(settings.get("mixed_precision", "no")) not in ("no", "fp16", "bf16"):
        return False
    ids = settings.get("gpu_ids", "all")
    if not isinstance(ids, str) or (kind == "MULTI_GPU" and ids != "all" and "," not in ids):
        return False
    if kind == "DEEPSPEED":
        known = set(DEEPSPEED_VARIABLES) | _DEEPSPEED_WITHOUT_EFFECT
        return set(settings.get("deepspeed_config", ())) <= known
    if kind == "FSDP":
        values = FSDP_DEFAULTS | settings.get("fsdp_config", {})
        # This pair is refused by accelerate.
        refused = values["fsdp_cpu_ram_efficient_loading"] and not values["fsdp_sync_module_states"]
        return set(values) == set(FSDP_DEFAULTS) and not refused
    return True


def _environ(
    settings: Mapping[str, Any], *, folder: str, machine: Machine | None, inherited: Mapping[str, str]
) -> dict[str, str]:
    kind, simple = settings["distributed_type"], environment.launcher(settings) == "simple"
    threads = threads_per_rank(
        on_cpu=simple and (bool(settings.get("use_cpu")) or kind == "MULTI_CPU"),
        by_torchrun=kind == "DEEPSPEED",
        local_ranks=settings["num_processes"],
        machine=machine,
        inherited=inherited,
    )
    environ = environment.shared(settings, threads=threads, folder=folder, pythonpath=inherited.get("PYTHONPATH", ""))
    if not simple:
        environ |= {name: value for name, value in peer_to_peer(machine).items() if name not in inherited}
    if settings.get("gpu_ids", "all") != "all":
        environ["CUDA_VISIBLE_DEVICES"] = settings["gpu_ids"]
    return environ


def _ranks(settings: Mapping[str, Any], port: int | None) -> tuple[Rank, ...]:
    # A configuration of the type NO has one process.
    if settings["num_processes"] == 1 and environment.launcher(settings) == "simple":
        return (Rank(rank=0),)
    chosen = port or settings.get("main_process_port") or 29500
    return environment.ranks(world=settings["num_processes"], address="127.0.0.1", port=chosen)
