"""One line of the report card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainwiz.message import Message

Verdict = Literal["passed", "failed", "warning", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was found about one thing, with its numbers; `name` is its stable name in JSON, `fix` what to do."""

    name: str
    title: Message
    verdict: Verdict
    found: Message
    fix: Message | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)


def failed(checks: Sequence[Check]) -> bool:
    """Whether any of them failed."""
    return any(check.verdict == "failed" for check in checks)
