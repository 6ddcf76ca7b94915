"""The report card of a rehearsal."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz.language import t, text
from trainwiz.rehearsal.check import Check
from trainwiz.ui import console, table

_MARKS = {"passed": ("✓", "good"), "failed": ("✗", "error"), "warning": ("!", "warning"), "skipped": ("·", "dim")}


def show(checks: Sequence[Check], *, seconds: float) -> None:
    """Print a line for each check, what to do below those that need it, and the verdict."""
    table.show_checks([_shown(check) for check in checks])
    console.data(console.styled(*_verdict(checks, seconds), sys.stdout))


def show_line(check: Check) -> None:
    """Print a single check, as talk."""
    shown = _shown(check)
    console.talk(
        console.styled(t("{mark} {check}: {found}", mark=shown.mark, check=shown.title, found=shown.found), shown.style)
    )
    if shown.fix:
        console.talk(f"  {shown.fix}")


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


def _shown(check: Check) -> table.Check:
    mark, style = _MARKS[check.verdict]
    fix = text(check.fix) if check.fix and check.verdict != "passed" else ""
    return table.Check(mark=mark, style=style, title=text(check.title), found=text(check.found), fix=fix)


def _finite(value: Any) -> Any:
    """The value, with null for numbers that JSON does not have."""
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
