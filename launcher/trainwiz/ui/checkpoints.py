"""Checkpoints as a table and as JSON, and the progress of reading their files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trainwiz.checkpoint import Checkpoint, State
from trainwiz.language import t
from trainwiz.outcome import Verified
from trainwiz.quantities import clock_time, size
from trainwiz.ui import table
from trainwiz.ui.table import Cell

Row = tuple[Checkpoint, Verified | None]
"""A checkpoint and what reading its files found; None if they were not read."""
_DAY_SECONDS = 86_400
_MOST_NAMES = 3
"""The most damaged files that are listed."""


def show(rows: Sequence[Row], now: float) -> None:
    """Print the table."""
    heads = (t("UPDATE"), t("SIZE"), t("FILES"), t("RANKS"), t("AGE"), t("COMPLETE"), t("VALID"))
    header = [Cell(text=head, style="bold") for head in heads]
    table.show([header, *(_cells(each, verified, now) for each, verified in rows)])


def to_dict(each: Checkpoint, verified: Verified | None) -> dict[str, Any]:
    """A checkpoint for `--json`. `valid` is null if its files were not read."""
    return {
        "path": each.path,
        "update": each.update,
        "size_bytes": each.size_bytes,
        "files": each.files,
        "written": each.written,
        "layout": each.layout,
        "num_processes": each.world,
        "complete": each.state is State.COMPLETE,
        "state": each.state.value,
        "valid": None if verified is None else verified.whole,
        "damaged": [] if verified is None else list(verified.damaged),
    }


class Reading:
    """Shows how much has been read, in one line on stderr that disappears at the end; nothing without a terminal."""

    def __init__(self, total_bytes: int) -> None:
        self.total, self.read, self.shown = total_bytes, 0, -1

    def add(self, count: int) -> None:
        """Count bytes that were read."""
        self.read += count
        percent = 100 * self.read // max(1, self.total)
        if percent != self.shown and sys.stderr.isatty():
            self.shown = percent
            line = t("verifying: {percent} % of {size}", percent=percent, size=size(self.total))
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line."""
        if self.shown >= 0:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _cells(each: Checkpoint, verified: Verified | None, now: float) -> list[Cell]:
    style = "good" if verified and verified.whole else "error" if verified and verified.damaged else "dim"
    days = int((now - each.written) // _DAY_SECONDS)
    values = (
        str(each.update),
        size(each.size_bytes),
        str(each.files),
        "-" if each.world is None else str(each.world),
        t("{n} d", n=days) if days > 0 else clock_time(max(0.0, now - each.written)),
        t("yes") if each.state is State.COMPLETE else t("no"),
    )
    return [*(Cell(text=value) for value in values), Cell(text=_validity(each, verified), style=style)]


def _validity(each: Checkpoint, verified: Verified | None) -> str:
    if each.state is State.PARTIAL:
        return "-"
    if each.state is State.DAMAGED:
        return t("no: moved aside as damaged")
    if verified is None:
        return "?"
    if verified.whole:
        return t("yes")
    more = verified.damaged[_MOST_NAMES:]
    return t("no: {files}", files=", ".join(verified.damaged[:_MOST_NAMES]) + (" …" if more else ""))
