"""One recorded run: its state, its progress, and why it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from trainwiz.message import Message, say
from trainwiz.outcome import signal_name
from trainwiz.quantities import whole
from trainwiz.record import metrics
from trainwiz.record.forecast import Compared, compared, measurements
from trainwiz.record.metrics import Record

_LENGTH = "--n_steps"


class State(str, Enum):
    """The state of a run."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    """A user or a scheduler asked it to stop."""
    KILLED = "killed"
    """It has no outcome, and its launcher no longer runs."""
    UNKNOWN = "unknown"
    """It was started on another machine, and only that machine knows whether it still runs."""
    QUEUED = "queued"
    """Its job waits for machines."""
    REQUEUED = "requeued"
    """Its job ran before, and waits to run again."""
    PREEMPTED = "preempted"
    """The scheduler took its machines away."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The contents of a run's folder."""

    name: str
    """The folder's name."""
    command: Mapping[str, Any] = field(default_factory=dict)
    """`command.json`."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """`outcome.json`; empty: the run has not ended, or was killed."""
    records: Sequence[Record] = ()
    """The records of metrics.jsonl."""
    unread_bytes: int = 0
    """How much of a very long metrics.jsonl was passed over between them."""
    memory: Sequence[Mapping[str, Any]] = ()
    """The records of memory.jsonl, as `record.memory` takes them."""
    alive: bool | None = False
    """Whether its launcher still runs; None: cannot be known here."""
    touched: float | None = None
    """When the run last wrote a file, in seconds since the epoch."""
    checkpoints: tuple[tuple[int, float], ...] = ()
    """Updates, each with the time at which its checkpoint was complete, in seconds since the epoch."""
    plan_text: str = ""
    """`plan.yaml`."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in one line; None: unknown."""

    name: str
    """The run's name."""
    state: State
    """Whether it runs, or how it ended."""
    started: str
    """Local time with its offset, as `command.json` has it."""
    updates: int | None
    """The last update that was trained."""
    total: int | None
    """The planned number of updates."""
    loss: float | None
    """The newest."""
    eval_loss: float | None
    """The newest."""
    speed: float | None
    """Median tokens per second."""
    seconds: float | None
    """How long it ran, or has been running."""
    why: Message | None
    """Why it ended; None: it is running."""
    resumed_from: str | None
    """The name of the run that it continues."""
    task: str | None = None
    """The task of its plan."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Peaks of memory, time of an update and bytes of a checkpoint, by the names of `record.forecast.QUANTITIES`."""
    compared: tuple[Compared, ...] = ()
    """Those that were forecast, too."""


def state(run: Recorded) -> State:
    """The state by the outcome; without one, by whether the launcher still runs."""
    if run.outcome:
        if run.outcome.get("stopped", run.outcome.get("interrupted")):
            return State.STOPPED
        if run.outcome.get("exit_code") == 0:
            return State.DONE
        return State.STOPPED if run.outcome.get("interrupted") else State.FAILED
    if run.alive is None or not run.command:
        return State.UNKNOWN
    return State.RUNNING if run.alive else State.KILLED


def summary(run: Recorded, now: float) -> Summary:
    """The run in a line."""
    update = metrics.finite_values(run.records, "update")
    return Summary(
        name=run.name,
        state=state(run),
        started=str(run.command.get("started", "")),
        updates=int(max(update)) if update else None,
        total=total_updates(run),
        loss=metrics.last(run.records, "loss"),
        eval_loss=metrics.last(run.records, "eval_loss"),
        speed=metrics.speed(run.records),
        seconds=seconds(run, now),
        why=why(run),
        resumed_from=run.command.get("resumed_from"),
        task=task(run),
        measured=measurements(run.outcome),
        compared=compared(run.outcome),
    )


def total_updates(run: Recorded) -> int | None:
    """The planned number of updates, if it is known."""
    total = run.command.get("total_updates")
    if isinstance(total, int):
        return total
    words = [str(word) for word in run.command.get("arguments") or ()]
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        # A length that was given to the script itself; of two equal options the last counts.
        value = following if word == _LENGTH else word.removeprefix(f"{_LENGTH}=")
        if word.startswith(_LENGTH) and (said := whole(value)) is not None:
            found = said
    return found


def task(run: Recorded) -> str | None:
    """The task of its plan; None for a script without one."""
    plan = run.command.get("plan")
    found = plan.get("task") if isinstance(plan, Mapping) else None
    return found if isinstance(found, str) else None


def seconds(run: Recorded, now: float) -> float | None:
    """How long it ran, or has been running; for a killed run, until it last wrote a file."""
    if isinstance(measured := run.outcome.get("seconds"), (int, float)):
        return float(measured)
    began = started(run)
    if began is None:
        return None
    ended = now if state(run) is State.RUNNING else run.touched
    return max(0.0, ended - began) if ended is not None else None


def started(run: Recorded) -> float | None:
    """When it was launched, in seconds since the epoch."""
    return moment(run.command.get("started"))


def moment(text: object) -> float | None:
    """A time as records have it, in seconds since the epoch."""
    with contextlib.suppress(ValueError, TypeError):
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    return None


def why(run: Recorded) -> Message | None:
    """Why it ended; None while it is running."""
    match state(run):
        case State.RUNNING:
            return None
        case State.DONE:
            return say("training completed")
        case State.UNKNOWN if not run.command:
            return say("no record of the launch")
        case State.UNKNOWN:
            return say(
                "started on {host}: only that machine knows whether it is still running",
                host=run.command.get("hostname"),
            )
        case State.KILLED:
            return say("trainwiz was killed, or the machine went down")
        case State.STOPPED:
            return _stopped(run.outcome)
    if lost := _lost(run.outcome):
        return lost
    told = run.outcome.get("diagnosis")
    diagnosis = told if isinstance(told, Mapping) else {}
    if diagnosis.get("known") and (cause := message(diagnosis.get("cause"))):
        return cause
    if exception := diagnosis.get("exception"):
        return say("{text}", text=str(exception))
    return message(diagnosis.get("how")) or say("exit code {code}", code=run.outcome.get("exit_code"))


def _lost(outcome: Mapping[str, Any]) -> Message | None:
    """The first of several machines that was lost, where no rank failed by itself."""
    lost = outcome.get("lost_machines")
    if not isinstance(lost, Mapping) or not lost or outcome.get("first_failed_rank") is not None:
        return None
    rank, how = next(iter(lost.items()))
    return say("machine {rank} was lost: {how}", rank=rank, how=how)


def message(recorded: object) -> Message | None:
    """A message from a record."""
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("template"), str):
        return None
    values = recorded.get("values")
    inner = values.items() if isinstance(values, Mapping) else ()
    told = Message(recorded["template"], {name: message(value) or value for name, value in inner})
    with contextlib.suppress(KeyError, IndexError, ValueError, AttributeError):
        told.template.format(**told.values)
        return told
    # A record of another version, or an edited one, may not fit its template; its text can still be shown.
    return say("{text}", text=str(recorded.get("text", "")))


def _stopped(outcome: Mapping[str, Any]) -> Message:
    number = outcome.get("signal")
    if outcome.get("stopped") and number is None:
        return say("a rank was asked to stop; it saved and exited cleanly")
    by = "Ctrl-C" if number == 2 else signal_name(number) if isinstance(number, int) else "?"
    if outcome.get("stopped") or outcome.get("exit_code") == 0:
        return say("stopped by {signal}; it saved and exited cleanly", signal=by)
    return say("stopped by {signal}; exit code {code}", signal=by, code=outcome.get("exit_code"))
