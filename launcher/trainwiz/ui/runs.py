"""Runs as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwiz.language import t, text
from trainwiz.quantities import clock_time
from trainwiz.record.run import State, Summary
from trainwiz.ui import console, forecasts, table
from trainwiz.ui.table import Cell

_LOSS, _SPEED, _TIME, _MEMORY = 3, 4, 5, 6
"""Columns of the table that a narrow terminal can do without."""
_LEAST_WHY = 16
"""Columns of the screen for the reason why a run ended."""
STYLES = {
    State.RUNNING: "hint",
    State.DONE: "good",
    State.FAILED: "error",
    State.STOPPED: "warning",
    State.KILLED: "error",
    State.UNKNOWN: "dim",
    State.QUEUED: "hint",
    State.REQUEUED: "hint",
    State.PREEMPTED: "warning",
}


def show(summaries: Sequence[Summary]) -> None:
    """Print the table, and forecasts that were missed.

    A narrow terminal leaves out memory, then speed, then time, then loss, in favor of the reason.
    """
    heads = [t("RUN"), t("STATE"), t("UPDATES"), t("LOSS"), t("TOKENS/S"), t("TIME"), t("WHY IT ENDED")]
    lines = [_cells(summary) for summary in summaries]
    optional = [_SPEED, _TIME, _LOSS]
    memory = [forecasts.memory(summary) for summary in summaries]
    if any(memory):
        heads.insert(_MEMORY, t("MEMORY (FORECAST)"))
        optional.insert(0, _MEMORY)
        for cells, words in zip(lines, memory, strict=True):
            cells.insert(_MEMORY, Cell(text=words or "-"))
    header = [Cell(text=head, style="bold") for head in heads]
    table.show([header, *lines], optional=optional, least_last=_LEAST_WHY)
    for summary in summaries:
        for pair in summary.compared:
            if pair.missed and summary.updates:  # a run that never trained needed less
                console.talk(t("{run}: {words}", run=summary.name, words=forecasts.miss(pair)), style="warning")


def to_dict(summary: Summary, job: str | None = None) -> dict[str, Any]:
    """A run for `--json`, with its job's id; seconds and tokens per second as they were measured."""
    return {
        "run": summary.name,
        "state": summary.state.value,
        "started": summary.started or None,
        "updates": summary.updates,
        "total_updates": summary.total,
        "loss": summary.loss,
        "eval_loss": summary.eval_loss,
        "tokens_per_second": summary.speed,
        "seconds": summary.seconds,
        "job": job,
        "why": text(summary.why) if summary.why else None,
        "resumed_from": summary.resumed_from,
        "measured": dict(summary.measured),
        "forecast": [forecasts.to_dict(pair) for pair in summary.compared],
    }


def state_name(state: State) -> str:
    """The state in the reader's language."""
    return {
        State.RUNNING: t("running"),
        State.DONE: t("done"),
        State.FAILED: t("failed"),
        State.STOPPED: t("stopped"),
        State.KILLED: t("killed"),
        State.UNKNOWN: t("unknown"),
        State.QUEUED: t("queued"),
        State.REQUEUED: t("requeued"),
        State.PREEMPTED: t("preempted"),
    }[state]


def progress(summary: Summary) -> str:
    """Updates, and their total where it is known."""
    if summary.updates is None:
        return f"0/{summary.total}" if summary.total else "-"
    return f"{summary.updates}/{summary.total}" if summary.total else str(summary.updates)


def _cells(summary: Summary) -> list[Cell]:
    why = text(summary.why) if summary.why else ""
    if summary.resumed_from and not why:
        why = t("continues {run}", run=summary.resumed_from)
    return [
        Cell(text=summary.name),
        Cell(text=state_name(summary.state), style=STYLES[summary.state]),
        Cell(text=progress(summary)),
        Cell(text="-" if summary.loss is None else f"{summary.loss:.4f}"),
        Cell(text="-" if summary.speed is None else f"{summary.speed:,.0f}"),
        Cell(text="-" if summary.seconds is None else clock_time(summary.seconds)),
        Cell(text=why),
    ]
