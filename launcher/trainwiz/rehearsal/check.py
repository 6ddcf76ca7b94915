"""One line of the report card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainwiz.message import Message

Verdict = Literal["passed", "failed", "warning", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    """A stable name, for JSON."""
    title: Message
    """What was checked."""
    verdict: Verdict
    """Whether it holds."""
    found: Message
    """What was seen, with its numbers."""
    fix: Message | None = None
    """What to do."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The measured values, for JSON."""


def judged(
    name: str, title: Message, found: Message, fix: Message | None = None, numbers: Mapping[str, Any] | None = None
) -> Check:
    """A check that failed if there is something to fix, and passed otherwise."""
    verdict: Verdict = "failed" if fix else "passed"
    return Check(name=name, title=title, verdict=verdict, found=found, fix=fix, numbers=numbers or {})


def failed(checks: Sequence[Check]) -> bool:
    """Whether any of them failed."""
    return any(check.verdict == "failed" for check in checks)
