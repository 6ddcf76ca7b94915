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

from trainwiz.cluster.types import Job, Known, Place, Target
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.plan import Plan

__all__ = ["Job", "Known", "Place", "Target", "address", "every", "job", "machine_rank", "place", "prefixes", "ranks"]


@functools.cache
def every() -> tuple[Target, ...]:
    """All targets, in the order in which they are asked."""
    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(__path__, f"{__name__}.")]
    return tuple(sorted((m for m in modules if hasattr(m, "PREFIX")), key=lambda m: (m.ORDER, m.PREFIX)))


def prefixes() -> tuple[str, ...]:
    """The beginnings of the variables that the targets read; a run's record holds these variables."""
    return tuple(target.PREFIX for target in every())


def place(plan: Plan, given: int | None, environ: Mapping[str, str]) -> Place:
    """Where this machine stands; `given` is what `--machine-rank` says.

    Raises `UsageError` where that is unknown, `Refused` where a target's allocation contradicts the plan.
    """
    for target in every():
        if contradiction := target.contradiction(environ, plan.machine.num_machines):
            raise contradiction
    rank = machine_rank(environ) if given is None else given
    return _complete(plan, rank, plan.machine.main_process_ip or address(environ))


def machine_rank(environ: Mapping[str, str]) -> int | None:
    """The rank of this machine, as far as the environment knows it."""
    return next((known.machine_rank for known in _known(environ) if known.machine_rank is not None), None)


def ranks(plan: Plan, place: Place | None) -> range:
    """The ranks of the machine at this place; all of the plan's on a single machine."""
    if place is None:
        return range(plan.machine.num_processes)
    here = plan.machine.ranks_per_machine
    return range(place.rank * here, (place.rank + 1) * here)


def address(environ: Mapping[str, str]) -> str | None:
    """The address of machine 0, as far as the environment knows it."""
    return next((known.address for known in _known(environ) if known.address), None)


def job(environ: Mapping[str, str]) -> Job | None:
    """The scheduler's job that this process belongs to; None outside of one."""
    return next((found for target in every() if (found := target.job(environ))), None)


def _known(environ: Mapping[str, str]) -> list[Known]:
    return [target.known(environ) for target in every()]


def _complete(plan: Plan, rank: int | None, address: str | None) -> Place:
    """The place of machine `rank`. Raises `UsageError` that says what to type where something is missing."""
    machines, port = plan.machine.num_machines, plan.machine.main_process_port
    if rank is None:
        raise UsageError(
            say("the plan has {n} machines, but the rank of this machine is not known", n=machines),
            say("add --machine-rank 0 on the first machine, --machine-rank 1 on the next; not needed under srun"),
        )
    if not 0 <= rank < machines:
        raise UsageError(say("--machine-rank {rank}: the plan has machines 0 to {last}", rank=rank, last=machines - 1))
    if not address:
        raise UsageError(
            say("the plan has {n} machines, but no address of machine 0", n=machines),
            say("set machine.main_process_ip in trainwiz.yaml to an address that the other machines can reach"),
        )
    if not port:
        raise UsageError(
            say("machine.main_process_port is 0; with several machines, all of them must use the same known port")
        )
    return Place(rank=rank, machines=machines, address=address, port=port)
