"""One run as it was recorded: its state, how far it came, why it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from trainwiz.message import Message, say
from trainwiz.outcome import signal_name
from trainwiz.record import metrics
from trainwiz.record.metrics import Record

_LENGTH = "--n_steps"


class State(str, Enum):
    """What has become of a run. UNKNOWN: it was started on another machine, which alone can tell."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    KILLED = "killed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run's folder, read. Times are seconds since the epoch.

    `memory` are samples of what the ranks held, as `record.memory` reads them.
    `alive` is whether its launcher still runs, None where that cannot be known here; `touched` is when the run last
    wrote anything; `checkpoints` are the updates with the times at which they were complete.
    """

    name: str
    command: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[Record] = ()
    memory: Sequence[Mapping[str, Any]] = ()
    alive: bool | None = False
    touched: float | None = None
    checkpoints: tuple[tuple[int, float], ...] = ()
    plan_text: str = ""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in a line. `speed` in tokens per second; `updates` is the last one, `total` the planned number."""

    name: str
    state: State
    started: str
    updates: int | None
    total: int | None
    loss: float | None
    eval_loss: float | None
    speed: float | None
    seconds: float | None
    why: Message | None
    resumed_from: str | None


def state(run: Recorded) -> State:
    """Told by the outcome; where there is none, by whether its launcher lives."""
    if run.outcome:
        if run.outcome.get("interrupted"):
            return State.STOPPED
        return State.DONE if run.outcome.get("exit_code") == 0 else State.FAILED
    if run.alive is None or not run.command:
        return State.UNKNOWN
    return State.RUNNING if run.alive else State.KILLED


def summary(run: Recorded, now: float) -> Summary:
    """The run in a line."""
    update = metrics.series(run.records, "update").values
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
    )


def total_updates(run: Recorded) -> int | None:
    """How many updates were planned, where that is known."""
    total = run.command.get("total_updates")
    if isinstance(total, int):
        return total
    words = [str(word) for word in run.command.get("arguments") or ()]
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        # The length that the plan does not know, given to the script itself; the last of two counts.
        value = following if word == _LENGTH else word.removeprefix(f"{_LENGTH}=")
        if word.startswith(_LENGTH) and value.isdigit():
            found = int(value)
    return found


def seconds(run: Recorded, now: float) -> float | None:
    """How long it ran, or has been running; of a killed one, up to its last sign of life."""
    if isinstance(measured := run.outcome.get("seconds"), (int, float)):
        return float(measured)
    began = started(run)
    if began is None:
        return None
    ended = now if state(run) is State.RUNNING else run.touched
    return max(0.0, ended - began) if ended is not None else None


def started(run: Recorded) -> float | None:
    """When it was launched."""
    return moment(run.command.get("started"))


def moment(text: object) -> float | None:
    """Seconds since the epoch of a time as records write it."""
    with contextlib.suppress(ValueError, TypeError):
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    return None


def why(run: Recorded) -> Message | None:
    """Why it ended; None of one that goes on."""
    match state(run):
        case State.RUNNING:
            return None
        case State.DONE:
            return say("trained to its end")
        case State.UNKNOWN if not run.command:
            return say("nothing was recorded of how it was launched")
        case State.UNKNOWN:
            return say(
                "started on {host}: only there it is known whether it still runs", host=run.command.get("hostname")
            )
        case State.KILLED:
            return say("trainwiz itself was killed, or the machine went down")
        case State.STOPPED:
            return _stopped(run.outcome)
    told = run.outcome.get("diagnosis")
    diagnosis = told if isinstance(told, Mapping) else {}
    if diagnosis.get("known") and (cause := message(diagnosis.get("cause"))):
        return cause
    if exception := diagnosis.get("exception"):
        return say("{text}", text=str(exception))
    return message(diagnosis.get("how")) or say("exit code {code}", code=run.outcome.get("exit_code"))


def message(recorded: object) -> Message | None:
    """A sentence as a record keeps it."""
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("template"), str):
        return None
    values = recorded.get("values")
    inner = values.items() if isinstance(values, Mapping) else ()
    told = Message(recorded["template"], {name: message(value) or value for name, value in inner})
    with contextlib.suppress(KeyError, IndexError, ValueError, AttributeError):
        told.template.format(**told.values)
        return told
    # A record of another version, or one that was edited: its text is still there to be read.
    return say("{text}", text=str(recorded.get("text", "")))


def _stopped(outcome: Mapping[str, Any]) -> Message:
    number = outcome.get("signal")
    by = "Ctrl-C" if number == 2 else signal_name(number) if isinstance(number, int) else "?"
    if outcome.get("exit_code") == 0:
        return say("stopped by {signal}; it saved and ended in order", signal=by)
    return say("stopped by {signal}; exit code {code}", signal=by, code=outcome.get("exit_code"))
