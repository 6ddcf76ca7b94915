"""The command lines that start a plan's world without trainwiz."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainwiz import strategies
from trainwiz.command.settings import ACCELERATE_FILE, distributed_type

if TYPE_CHECKING:
    from trainwiz.plan import Plan

Equivalent = tuple[Mapping[str, str], tuple[str, ...]]

ADDRESS_PLACEHOLDER = "ADDRESS_OF_MACHINE_0"


def equivalents(
    plan: Plan, *, script: str = "train.py", arguments: Sequence[str] = (), machine_rank: int = 0
) -> tuple[Equivalent, ...]:
    """Each way to start the same world by hand: added environment and argv. The first is the simplest.

    Only commands that really do the same: `accelerate launch` starts several CPU ranks as one process, so it is left
    out there; `python` alone is listed for one rank. Over several machines, the line is that of `machine_rank`.
    """
    tail = (script, *arguments)
    environ = strategies.of(plan).environment(plan.machine.device)
    kind = distributed_type(plan)
    torchrun = (environ, (*_torchrun(plan, machine_rank), *tail))
    if plan.engine == "colossalai":
        # Over several machines it wants their names, and reaches them by ssh.
        alone = plan.machine.num_machines == 1 and plan.machine.device != "cpu"
        colossalai = ("colossalai", "run", "--nproc_per_node", str(plan.machine.num_processes), *tail)
        return (torchrun, (environ, colossalai)) if alone else (torchrun,)
    if kind == "MULTI_CPU":
        return (torchrun,)
    accelerate = (environ, (*_accelerate(plan, machine_rank), *tail))
    return ((environ, ("python", *tail)), accelerate) if kind == "NO" else (accelerate, torchrun)


def line(equivalent: Equivalent) -> str:
    """One equivalent as it is typed in a POSIX shell."""
    environ, argv = equivalent
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environ.items()), shlex.join(argv)])


def _accelerate(plan: Plan, machine_rank: int) -> tuple[str, ...]:
    words: tuple[str, ...] = ("accelerate", "launch", "--config_file", ACCELERATE_FILE)
    if plan.machine.num_machines > 1:
        words += ("--machine_rank", str(machine_rank))
        if plan.machine.main_process_ip is None:
            words += ("--main_process_ip", ADDRESS_PLACEHOLDER)
    return words


def _torchrun(plan: Plan, machine_rank: int) -> tuple[str, ...]:
    machine = plan.machine
    if machine.num_machines == 1:
        return ("torchrun", "--standalone", "--nproc_per_node", str(machine.num_processes))
    return (
        *("torchrun", "--nnodes", str(machine.num_machines), "--node_rank", str(machine_rank)),
        *("--nproc_per_node", str(machine.ranks_per_machine)),
        *("--master_addr", machine.main_process_ip or ADDRESS_PLACEHOLDER),
        *("--master_port", str(machine.main_process_port)),
    )
