"""Tokenized data as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.project import TokenFolder
from trainwiz.quantities import clock_time, size
from trainwiz.ui import table
from trainwiz.ui.table import Cell

_DAY_SECONDS = 86_400


def show(folders: Sequence[TokenFolder], now: float) -> None:
    """Print the table."""
    heads = (t("NAME"), t("SIZE"), t("TOKENS"), t("USED"), t("STATE"), t("DATA"))
    table.show([[Cell(text=head, style="bold") for head in heads], *(_cells(each, now) for each in folders)])


def to_dict(each: TokenFolder, *, removed: bool) -> dict[str, Any]:
    """A folder for `--json`."""
    return {
        "path": each.path,
        "data": each.data,
        "tokens": each.tokens,
        "size_bytes": each.size_bytes,
        "used": each.used,
        "complete": each.complete,
        "busy": each.busy,
        "removed": removed,
    }


def _cells(each: TokenFolder, now: float) -> list[Cell]:
    days = int((now - each.used) // _DAY_SECONDS)
    state = t("complete") if each.complete else t("being written") if each.busy else t("unfinished")
    values = (
        Path(each.path).name,
        size(each.size_bytes),
        f"{each.tokens:,}",
        t("{n} d", n=days) if days > 0 else clock_time(max(0.0, now - each.used)),
        state,
        each.data or "-",
    )
    return [Cell(text=value) for value in values]
