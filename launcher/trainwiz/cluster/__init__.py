"""Where this machine stands among those of a plan: its rank, and the address and port of machine 0.

Each target (a scheduler, a launcher) is one module that reads its own variables from an environment. Targets are found
by folder: each module with a `PREFIX` is one. The first target that knows a value gives it. What a person says by hand
comes before all of them.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainwiz.cluster.types import Job, Known, Place, Target
from trainwiz.errors import Refused, UsageError
from trainwiz.message import say
from trainwiz.shell_words import quoted

if TYPE_CHECKING:
    from trainwiz.plan import Plan

__all__ = [
    "Job",
    "Known",
    "Place",
    "Target",
    "address",
    "agree",
    "checked_rank",
    "every",
    "job",
    "machine_rank",
    "place",
    "prefixes",
    "ranks",
]

_THIS_MACHINE = ("localhost", "127.0.0.1", "127.0.1.1", "::1")


@functools.cache
def every() -> tuple[Target, ...]:
    """All targets, in the order in which they are asked."""
    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(__path__, f"{__name__}.")]
    return tuple(sorted((m for m in modules if hasattr(m, "PREFIX")), key=lambda m: (m.ORDER, m.PREFIX)))


def prefixes() -> tuple[str, ...]:
    """The beginnings of the variables that the targets read; a run's record holds these variables."""
    return tuple(target.PREFIX for target in every())


def place(plan: Plan, given: int | None, environ: Mapping[str, str], *, folder: str = ".") -> Place:
    """Where this machine stands; `given` is what `--machine-rank` says, `folder` the plan's for what is suggested.

    Raises `UsageError` where that is unknown, `Refused` where a target's allocation contradicts the plan.
    """
    agree(plan.machine.num_machines, environ)
    _agree_on_ranks(plan, environ)
    rank = machine_rank(environ) if given is None else given
    found = plan.machine.main_process_ip or address(environ)
    if rank and found in _THIS_MACHINE and (around := job(environ)):
        raise UsageError(
            say(
                "the address of machine 0, {address}, is this machine's own, but this is machine {rank}",
                address=found,
                rank=rank,
            ),
            say(
                "unset MASTER_ADDR, because {scheduler} provides the address of machine 0; or set it to an "
                "address that all machines can reach",
                scheduler=around.scheduler,
            ),
        )
    if plan.cluster.kind != "none" and (rank is None or not found) and job(environ) is None:
        kind, n = plan.cluster.kind, plan.machine.num_machines
        raise UsageError(
            say("the plan's {n} machines are started by {kind}, and this machine is not one of them", n=n, kind=kind),
            say(
                "run: trainwiz submit {folder}; by hand, set machine.main_process_ip and give each machine its "
                "--machine-rank",
                folder=quoted(folder),
            ),
        )
    return _complete(plan, rank, found, int(_first(environ, "port") or 0))


def agree(machines: int, environ: Mapping[str, str]) -> None:
    """Raises `Refused` where a target's allocation contradicts so many machines."""
    for target in every():
        if contradiction := target.contradiction(environ, machines):
            raise contradiction


def _agree_on_ranks(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raises `Refused` where a job has fewer GPUs on each machine than ranks; a plan for CPUs takes no GPU."""
    given, planned = _first(environ, "ranks_per_machine"), plan.machine.ranks_per_machine
    if plan.machine.device != "cpu" and isinstance(given, int) and given < planned:
        raise Refused(
            say("the job has {given} GPUs on each machine, but the plan has {n} ranks there", given=given, n=planned),
            say("ask for {n} GPUs per machine, or change machine.num_processes", n=planned),
        )


def machine_rank(environ: Mapping[str, str]) -> int | None:
    """The rank of this machine, as far as the environment knows it."""
    found = _first(environ, "machine_rank")
    return found if isinstance(found, int) else None


def ranks(plan: Plan, place: Place | None) -> range:
    """The ranks of the machine at this place; all of the plan's on a single machine."""
    if place is None:
        return range(plan.machine.num_processes)
    here = plan.machine.ranks_per_machine
    return range(place.rank * here, (place.rank + 1) * here)


def address(environ: Mapping[str, str]) -> str | None:
    """The address of machine 0, as far as the environment knows it."""
    found = _first(environ, "address")
    return found if isinstance(found, str) else None


def job(environ: Mapping[str, str]) -> Job | None:
    """The scheduler's job that this process belongs to; None outside of one."""
    return next((found for target in every() if (found := target.job(environ))), None)


def _first(environ: Mapping[str, str], name: str) -> int | str | None:
    """What the first target says that knows it."""
    told = (getattr(target.known(environ), name) for target in every())
    return next((value for value in told if value not in (None, "")), None)


def _complete(plan: Plan, rank: int | None, address: str | None, known_port: int) -> Place:
    """The place of machine `rank`. Raises `UsageError` that says what to type where something is missing."""
    machines, port = plan.machine.num_machines, plan.machine.main_process_port or known_port
    rank = checked_rank(machines, rank)
    if not address:
        raise UsageError(
            say("the plan has {n} machines, but no address for machine 0", n=machines),
            say("set machine.main_process_ip in trainwiz.yaml to an address that the other machines can reach"),
        )
    if not port:
        raise UsageError(
            say("machine.main_process_port is 0; with several machines, all of them must use the same known port")
        )
    return Place(rank=rank, machines=machines, address=address, port=port)


def checked_rank(machines: int, rank: int | None) -> int:
    """The rank of this machine among so many. Raises `UsageError` where it is not known, or is none of them."""
    if rank is None:
        raise UsageError(
            say("the plan has {n} machines, but the rank of this machine is not known", n=machines),
            say("add --machine-rank 0 on the first machine, --machine-rank 1 on the next; not needed under srun"),
        )
    if not 0 <= rank < machines:
        raise UsageError(say("--machine-rank {rank}: the plan has machines 0 to {last}", rank=rank, last=machines - 1))
    return rank
