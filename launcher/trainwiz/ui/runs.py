"""Runs as a table, and as other programs read them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from trainwiz import columns
from trainwiz.language import t, text
from trainwiz.record.run import State, Summary
from trainwiz.ui import console
from trainwiz.ui.live import clock_time

_GAP = "  "
_LEAST_WHY = 16
_STYLES = {
    State.RUNNING: "hint",
    State.DONE: "good",
    State.FAILED: "error",
    State.STOPPED: "warning",
    State.KILLED: "error",
    State.UNKNOWN: "dim",
}


def show(summaries: Sequence[Summary]) -> None:
    """The table on stdout; on a terminal it keeps to its width, and gives up its rightmost numbers first."""
    heads = [t("RUN"), t("STATE"), t("UPDATES"), t("LOSS"), t("TOKENS/S"), t("TIME"), t("WHY IT ENDED")]
    rows = [_cells(summary) for summary in summaries]
    widths = [max(columns.width(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    shown = _fitting(widths, room)
    console.data(console.styled(_line(heads, widths, shown, room), "bold", sys.stdout))
    for summary, row in zip(summaries, rows, strict=True):
        line = _line(row, widths, shown, room)
        before, after = line[: len(row[0]) + len(_GAP)], line[len(row[0]) + len(_GAP) :]
        state = columns.cut(after, columns.width(row[1]))
        console.data(before + console.styled(state, _STYLES[summary.state], sys.stdout) + after[len(state) :])


def to_dict(summary: Summary) -> dict[str, Any]:
    """A run for `--json`; seconds and tokens per second as they were measured."""
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
        "why": text(summary.why) if summary.why else None,
        "resumed_from": summary.resumed_from,
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
    }[state]


def size(count: int) -> str:
    """Bytes as people speak of them: powers of 1000, as on a GPU's box."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def progress(summary: Summary) -> str:
    """Updates, and of how many where that is known."""
    if summary.updates is None:
        return f"0/{summary.total}" if summary.total else "-"
    return f"{summary.updates}/{summary.total}" if summary.total else str(summary.updates)


def _cells(summary: Summary) -> list[str]:
    why = text(summary.why) if summary.why else ""
    if summary.resumed_from and not why:
        why = t("continues {run}", run=summary.resumed_from)
    return [
        summary.name,
        state_name(summary.state),
        progress(summary),
        "-" if summary.loss is None else f"{summary.loss:.4f}",
        "-" if summary.speed is None else f"{summary.speed:,.0f}",
        "-" if summary.seconds is None else clock_time(summary.seconds),
        why,
    ]


def _fitting(widths: Sequence[int], room: int | None) -> list[int]:
    """The columns that are shown: speed, then time, then updates give way to the reason."""
    shown = list(range(len(widths)))
    for column in (4, 5, 3):
        if room is None or sum(widths[i] + len(_GAP) for i in shown[:-1]) + _LEAST_WHY <= room:
            break
        shown.remove(column)
    return shown


def _line(cells: Sequence[str], widths: Sequence[int], shown: Sequence[int], room: int | None) -> str:
    line = _GAP.join(columns.pad(cells[i], widths[i] if i != shown[-1] else 0) for i in shown).rstrip()
    if room is None or columns.width(line) <= room:
        return line
    return columns.cut(line, room - 1) + "…"
