"""The command of a plan: ranks started directly on one machine, torchrun on each of several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainwiz import strategies
from trainwiz.command import environment
from trainwiz.command.settings import for_accelerate
from trainwiz.command.types import Command, Rank

if TYPE_CHECKING:
    from trainwiz.cluster import Place
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan

_NOTHING: Mapping[str, str] = MappingProxyType({})


def for_plan(
    plan: Plan,
    *,
    python: str,
    folder: str,
    port: int,
    place: Place | None = None,
    script: str = "train.py",
    arguments: Sequence[str] = (),
    torchrun_options: Sequence[str] = (),
    added: Mapping[str, str] = _NOTHING,
    machine: Machine | None = None,
    inherited: Mapping[str, str] = _NOTHING,
) -> Command:
    """This machine's part of a plan's world: each rank started directly, or torchrun where `place` is one of several.

    `port` is that of the rendezvous on one machine; over several it is the place's.
    `inherited` is the environment that the ranks will inherit: OMP_NUM_THREADS there wins, PYTHONPATH is extended.
    `added` is what the launch itself puts into their environment, and `torchrun_options` into torchrun's command line.
    `machine` decides the threads of each rank and whether RTX 40 cards need peer-to-peer turned off.
    """
    alone = 1 if strategies.of(plan).one_rank else plan.machine.num_processes
    world = plan.machine.ranks_per_machine if place else alone
    environ = {**_shared(plan, folder=folder, world=world, machine=machine, inherited=inherited), **added}
    simple = plan.engine == "accelerate" and environment.launcher(for_accelerate(plan)) == "simple"
    if place:
        return Command(
            argv=(python, *_torchrun(plan, place), *torchrun_options, script, *arguments),
            environ=environ,
            ranks=(Rank(rank=0),),
            cwd=folder,
            launcher="torchrun",
        )
    return Command(
        argv=(python, "-u", script, *arguments),
        environ=environ,
        # Alone, accelerate sets none of torch.distributed's variables, and no process group is made.
        ranks=(Rank(rank=0),)
        if simple and world == 1
        else environment.ranks(world=world, address="127.0.0.1", port=port),
        cwd=folder,
    )


def _torchrun(plan: Plan, place: Place) -> tuple[str, ...]:
    """torchrun for this machine's ranks, with static rendezvous."""
    return (
        *("-m", "torch.distributed.run"),
        *("--nnodes", str(place.machines), "--node_rank", str(place.rank)),
        *("--nproc_per_node", str(plan.machine.ranks_per_machine)),
        *("--master_addr", place.address, "--master_port", str(place.port)),
    )


def threads_per_rank(
    *, on_cpu: bool, by_torchrun: bool, local_ranks: int, machine: Machine | None, inherited: Mapping[str, str]
) -> int | None:
    """OMP_NUM_THREADS for a rank, None to leave it alone.

    As accelerate: what is set already wins; CPU ranks share the physical cores; otherwise 1. For DeepSpeed it leaves
    this to torchrun (`by_torchrun`), which does nothing for one rank.
    """
    given = inherited.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    if on_cpu and machine is not None:
        return max(1, min(machine.cpu.physical_cores, machine.cpu.usable_cores) // local_ranks)
    # For one rank on cores that nobody counted, torch's own choice (all of them) is right.
    return None if local_ranks == 1 and (on_cpu or by_torchrun) else 1


def peer_to_peer(machine: Machine | None) -> dict[str, str]:
    """RTX 40 cards under a driver before 550.40.07 lack peer-to-peer; accelerate refuses to start without these.

    Source: accelerate.utils.environment.check_cuda_p2p_ib_support.
    """
    if machine is None or len(machine.gpus) < 2 or not any("RTX 40" in gpu.name for gpu in machine.gpus):
        return {}
    driver = tuple(int(n) for n in re.findall(r"\d+", machine.driver_version or ""))
    return {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"} if driver and driver < (550, 40, 7) else {}


def _shared(
    plan: Plan, *, folder: str, world: int, machine: Machine | None, inherited: Mapping[str, str]
) -> dict[str, str]:
    on_cpu = plan.machine.device == "cpu"
    # DeepSpeed's CPUAdam computes with OpenMP threads. torchrun leaves it one, which is many times slower.
    computes_on_cpu = on_cpu or plan.strategy.offload_optimizer_device != "none"
    threads = threads_per_rank(
        on_cpu=computes_on_cpu,
        by_torchrun=strategies.of(plan).uses_deepspeed,
        local_ranks=world,
        machine=machine,
        inherited=inherited,
    )
    if plan.engine == "colossalai":
        environ = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    else:
        path = inherited.get("PYTHONPATH", "")
        environ = environment.shared(for_accelerate(plan), threads=threads, folder=folder, pythonpath=path)
        if on_cpu:
            # accelerate imports DeepSpeed where it gathers weights, under DDP too, and that warns of a CPU it found.
            environ["DS_ACCELERATOR"] = "cpu"
    environ |= strategies.of(plan).environment(plan.machine.device)
    if world > 1 and plan.machine.device == "cuda":
        environ |= {name: value for name, value in peer_to_peer(machine).items() if name not in inherited}
    return environ
