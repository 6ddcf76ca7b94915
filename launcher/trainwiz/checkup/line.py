"""One line of a checkup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainwiz.finding import Level
from trainwiz.message import Message, say


@dataclass(frozen=True, kw_only=True)
class Line:
    """What was found about a subject. Plain strings are data, the same in every language."""

    subject: str
    """A stable name, for JSON."""
    title: Message | str
    found: Message | str
    level: Level | None = None
    """None: good."""
    fix: Message | None = None
    """What to type."""
    # docs/decisions/rules.md: What is a rule, and what is a line of doctor
    rules: tuple[str, ...] = ()
    """The ids of the rules on the same subject."""
    rule: str | None = None
    """The id of the rule that is violated."""


def joined(parts: Iterable[Message | str]) -> Message | str:
    """The parts as a list with commas."""
    first, *others = list(parts) or [say("none")]
    for other in others:
        first = say("{before}, {it}", before=first, it=other)
    return first
