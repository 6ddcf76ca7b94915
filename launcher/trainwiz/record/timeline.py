"""Launches, checkpoints and ends of a run and of those that it continues, with their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainwiz.message import Message, say
from trainwiz.record import metrics
from trainwiz.record.run import Recorded, State, moment, seconds, started, state, why


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """One launch within a lineage; None: unknown."""

    name: str
    """The run's name."""
    state: State
    """Whether it runs, or how it ended."""
    began: float | None
    """In seconds since the epoch."""
    seconds: float | None
    """How long it ran."""
    first: int | None
    """Its first update."""
    last: int | None
    """Its last update."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened."""

    at: float
    """In seconds since the epoch."""
    run: str
    """The name of the run to which it belongs."""
    what: Message
    """In one line."""


def stretches(lineage: Sequence[Recorded], now: float) -> list[Stretch]:
    """The stretches of a lineage, the oldest first."""
    found = []
    for run in lineage:
        updates = metrics.finite_values(run.records, "update")
        found.append(
            Stretch(
                name=run.name,
                state=state(run),
                began=started(run),
                seconds=seconds(run, now),
                first=int(min(updates)) if updates else None,
                last=int(max(updates)) if updates else None,
            )
        )
    return found


def events(lineage: Sequence[Recorded], now: float) -> list[Event]:
    """All events in order. Checkpoints that rotation has deleted are not known any more."""
    found: list[Event] = []
    seen: set[tuple[int, float]] = set()
    for run in lineage:
        began = started(run)
        if began is None:
            continue
        before = run.command.get("resumed_from")
        launched = say("launched to continue {run}", run=before) if before else say("launched")
        found.append(Event(at=began, run=run.name, what=launched))
        first = run.outcome.get("first_update_seconds")
        if isinstance(first, (int, float)):
            found.append(Event(at=began + first, run=run.name, what=say("first training metrics")))
        found += _attempts(run)
        length = seconds(run, now)
        if (ended := why(run)) and length is not None:
            found.append(Event(at=began + length, run=run.name, what=ended))
    for run in lineage:
        # A lineage shares its checkpoints; each belongs to the launch during which it was written.
        for update, at in run.checkpoints:
            if (update, at) not in seen:
                seen.add((update, at))
                owner = [r.name for r in lineage if (began := started(r)) is not None and began <= at + 1]
                what = say("checkpoint of update {update}", update=update)
                found.append(Event(at=at, run=owner[-1] if owner else run.name, what=what))
    return sorted(found, key=lambda event: event.at)


def _attempts(run: Recorded) -> list[Event]:
    """The ends of all attempts except the last one, whose end is that of the run."""
    entries = run.outcome.get("attempts")
    found = []
    for number, entry in enumerate(entries[:-1] if isinstance(entries, list) else (), 1):
        at = moment(entry.get("ended")) if isinstance(entry, Mapping) else None
        if at is not None:
            what = say(
                "attempt {number} ended at update {update} with exit code {code}; then: {then}",
                number=number,
                update=entry.get("update"),
                code=entry.get("exit_code"),
                then=str(entry.get("then")),
            )
            found.append(Event(at=at, run=run.name, what=what))
    return found


def resumed_at(lineage: Sequence[Recorded]) -> list[float]:
    """The updates at which a launch continued another one."""
    starts = [metrics.finite_values(run.records, "update") for run in lineage[1:]]
    return [min(values) for values in starts if values]
