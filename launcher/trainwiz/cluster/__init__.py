"""Where this machine stands among those of a plan: its rank, and the address and port of machine 0.

Each target (a scheduler, a launcher) is one module that reads its own variables from an environment. To add one, write
the module and name it in `TARGETS`; the first target that knows a value gives it. What a person says by hand comes
before all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainwiz.cluster import by_hand, slurm, torchrun
from trainwiz.cluster.types import Known, Place, Target

if TYPE_CHECKING:
    from trainwiz.plan import Plan

__all__ = ["TARGETS", "Known", "Place", "Target", "address", "place"]

TARGETS: Mapping[str, Target] = {"torchrun": torchrun, "slurm": slurm}


def place(plan: Plan, machine_rank: int | None, environ: Mapping[str, str]) -> Place:
    """Where this machine stands; `machine_rank` is what `--machine-rank` says.

    Raises `UsageError` where that is unknown, `Refused` where a target's allocation contradicts the plan.
    """
    for target in TARGETS.values():
        if contradiction := target.contradiction(environ, plan.machine.num_machines):
            raise contradiction
    rank = machine_rank
    if rank is None:
        rank = next((k.machine_rank for k in _known(environ) if k.machine_rank is not None), None)
    return by_hand.place(plan, rank=rank, address=plan.machine.main_process_ip or address(environ))


def address(environ: Mapping[str, str]) -> str | None:
    """The address of machine 0, as far as the environment knows it."""
    return next((known.address for known in _known(environ) if known.address), None)


def _known(environ: Mapping[str, str]) -> list[Known]:
    return [target.known(environ) for target in TARGETS.values()]
