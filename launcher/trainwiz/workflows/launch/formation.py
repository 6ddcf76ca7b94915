"""Which machines train an attempt of a run over several, and with which split of the batch."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from trainwiz import cluster, strategies
from trainwiz.batch import Batch
from trainwiz.cluster import Place
from trainwiz.errors import Refused, UsageError
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.workflows.launch.attempts import RESUMING, planned_batch
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.request import Request

_RANGE = re.compile(r"(?:(\d{1,6}):)?(\d{1,6})")
"""What `--nnodes` takes: MIN:MAX, or one number for both."""


@dataclass(frozen=True, kw_only=True)
class Formation:
    """One attempt of such a run."""

    attempt: int
    """Its number, from 0."""
    machines: tuple[int, ...]
    """The machines that train it, in the order of their ranks; the first is machine 0."""
    port: int
    """Of torchrun's rendezvous on machine 0."""
    batch: Batch
    """How the real batch is split."""
    resume: bool
    """Whether it goes on from the newest checkpoint."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are told to other machines."""
        return dataclasses.asdict(self)

    @classmethod
    def told(cls, values: dict[str, Any]) -> Formation:
        """What machine 0 told. Raises `TypeError`, `KeyError` or `ValueError` where it makes no sense."""
        return cls(
            attempt=int(values["attempt"]),
            machines=tuple(int(rank) for rank in values["machines"]),
            port=int(values["port"]),
            batch=Batch(**{name: int(value) for name, value in values["batch"].items()}),
            resume=bool(values["resume"]),
        )


def formed(prepared: Prepared, formation: Formation) -> Prepared:
    """This machine's part of an attempt."""
    assert prepared.team
    assert prepared.plan
    assert prepared.place
    place = Place(
        rank=formation.machines.index(prepared.place.rank),
        machines=len(formation.machines),
        address=prepared.place.address,
        port=formation.port,
    )
    part = dataclasses.replace(
        prepared, place=place, ranks=cluster.ranks(prepared.plan, place), attempt=formation.attempt
    )
    resuming = RESUMING if formation.resume and not prepared.continues else ()
    arguments = (*resuming, *_split(prepared, formation.batch))
    assert part.workers
    command = prepared.team.command(place, part.workers.options, arguments)
    return dataclasses.replace(part, command=command)


def _split(prepared: Prepared, batch: Batch) -> tuple[str, ...]:
    if batch == planned_batch(prepared):
        return ()
    return ("--num_processes", str(batch.world), *batch.arguments)


def usable(
    present: Collection[int], batch: Batch, *, ranks_per_machine: int, least: int
) -> tuple[tuple[int, ...], Batch] | None:
    """As many of the machines as the real batch can be divided over, and its split; None where these are too few."""
    machines = sorted(present)
    for count in range(len(machines), least - 1, -1):
        if split := batch.over(count * ranks_per_machine):
            return tuple(machines[:count]), split
    return None


def is_range(nnodes: str) -> bool:
    """Whether `--nnodes` names a number of machines, or the fewest and the most."""
    return _RANGE.fullmatch(nnodes) is not None


def least(request: Request, plan: Plan) -> int:
    """With how many machines the run may go on; all of them unless `--nnodes` says otherwise.

    Raises `UsageError` for a range that is none, and `Refused` where the training cannot change its world.
    """
    machines = plan.machine.num_machines
    if not request.nnodes:
        return machines
    match = _RANGE.fullmatch(request.nnodes)
    if match is None:
        raise UsageError(say("--nnodes {word}: must be MIN:MAX, such as 1:2", word=request.nnodes))
    most = int(match[2])
    fewest = int(match[1] or most)
    if most != machines:
        raise UsageError(
            say("--nnodes {word}: the plan has {n} machines, so MAX must be {n}", word=request.nnodes, n=machines),
            say("change machine.num_machines with trainwiz update, or MAX"),
        )
    if not 1 <= fewest <= most:
        raise UsageError(say("--nnodes {word}: MIN must be from 1 to {n}", word=request.nnodes, n=most))
    if fewest < most:
        _refuse_fixed_worlds(plan)
        _refuse_indivisible(plan, fewest)
    return fewest


def _refuse_fixed_worlds(plan: Plan) -> None:
    if strategies.of(plan).any_world(plan):
        return
    raise Refused(
        say(
            "{strategy} can load a checkpoint only with the number of ranks that saved it, so the run cannot "
            "continue with fewer machines",
            strategy=plan.strategy.label,
        ),
        say("remove --nnodes; with --max-restarts, the run waits for a lost machine and continues with all"),
    )


def _refuse_indivisible(plan: Plan, fewest: int) -> None:
    real, here = plan.batch.real_batch_size, plan.machine.ranks_per_machine
    if real % (fewest * here) == 0:
        return
    raise Refused(
        say(
            "the real batch of {real} samples cannot be divided among {n} ranks ({machines} machines × {here})",
            real=real,
            n=fewest * here,
            machines=fewest,
            here=here,
        ),
        say("choose another MIN for --nnodes, or a batch.real_batch_size that is divisible by {n}", n=fewest * here),
    )
