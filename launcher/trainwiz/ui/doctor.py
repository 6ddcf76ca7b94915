"""The checkup as a checklist: what was found, good or not, and what to type."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trainwiz.checkup import Line
from trainwiz.finding import Level
from trainwiz.language import t, text
from trainwiz.ui import console, table
from trainwiz.ui.table import Check

_MARKS: dict[Level | None, tuple[str, str]] = {
    None: ("✓", "good"),
    Level.HINT: ("·", "hint"),
    Level.WARNING: ("!", "warning"),
    Level.ERROR: ("✗", "error"),
}


def show(lines: Sequence[Line], *, seen: bool = True) -> None:
    """Print the checklist and the verdict; none on a machine that nobody has `seen`."""
    table.show_checks([_check(line) for line in lines])
    errors, warnings = count(lines)
    if not (seen or errors):
        console.data(t("no verdict: only the GPUs of that machine are known"))
        return
    verdict = (
        t(
            "errors: {errors}, warnings: {warnings}; training would fail on this machine",
            errors=errors,
            warnings=warnings,
        )
        if errors
        else t("training can run on this machine; warnings: {warnings}", warnings=warnings)
    )
    console.data(console.styled(verdict, "error" if errors else "good", sys.stdout))


def to_dict(line: Line) -> dict[str, Any]:
    """A line for JSON, in the reader's language; `level` is good, hint, warning or error."""
    return {
        "subject": line.subject,
        "title": text(line.title),
        "found": text(line.found),
        "level": line.level.value if line.level else "good",
        "fix": text(line.fix) if line.fix else None,
        "rule": line.rule,
    }


def count(lines: Sequence[Line]) -> tuple[int, int]:
    """Errors and warnings among them."""
    levels = [line.level for line in lines]
    return levels.count(Level.ERROR), levels.count(Level.WARNING)


def _check(line: Line) -> Check:
    mark, style = _MARKS[line.level]
    found = f"{text(line.found)}  {line.rule}" if line.rule else text(line.found)
    return Check(
        mark=mark,
        style=style,
        title=text(line.title),
        found=found,
        fix=text(line.fix) if line.fix else "",
        loud=line.level in (Level.ERROR, Level.WARNING),
    )
