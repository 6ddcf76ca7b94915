"""The report card of a rehearsal."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz import columns
from trainwiz.language import t, text
from trainwiz.rehearsal.check import Check
from trainwiz.ui import console

_MARKS = {"passed": ("✓", "good"), "failed": ("✗", "error"), "warning": ("!", "warning"), "skipped": ("·", "dim")}
_GAP = 2


def show(checks: Sequence[Check], *, seconds: float) -> None:
    """The card on stdout: a line for each check, what to do below those that need it, and the verdict."""
    out = sys.stdout
    wide = max(columns.width(text(check.title)) for check in checks)
    for check in checks:
        mark, style = _MARKS[check.verdict]
        title = columns.pad(text(check.title), wide + _GAP)
        rest = " " * (2 + wide + _GAP)
        first, *more = console.fitted(text(check.found), first=f"{mark} {title}", rest=rest, stream=out)
        console.data(console.styled(mark, style, out) + first.removeprefix(mark))
        for line in more:
            console.data(line)
        if check.fix and check.verdict != "passed":
            for line in console.fitted(text(check.fix), first=f"{rest}→ ", rest=f"{rest}  ", stream=out):
                console.data(console.styled(line, "good", out))
    console.data(console.styled(*_verdict(checks, seconds), out))


def to_dict(check: Check) -> dict[str, Any]:
    """A check for JSON."""
    return {
        "name": check.name,
        "title": text(check.title),
        "verdict": check.verdict,
        "found": text(check.found),
        "fix": text(check.fix) if check.fix and check.verdict != "passed" else None,
        "numbers": _finite(check.numbers),
    }


def _finite(value: Any) -> Any:
    """The value with null for what JSON cannot say."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(checks: Sequence[Check], seconds: float) -> tuple[str, str]:
    verdicts = [check.verdict for check in checks]
    numbers = {"passed": verdicts.count("passed"), "failed": verdicts.count("failed"), "seconds": f"{seconds:.0f}"}
    warnings = verdicts.count("warning")
    if numbers["failed"]:
        return t(
            "failed: {failed}, passed: {passed}, in {seconds} s; do not rent GPUs for this yet", **numbers
        ), "error"
    return t("passed: {passed}, warnings: {warnings}, in {seconds} s", warnings=warnings, **numbers), "good"
