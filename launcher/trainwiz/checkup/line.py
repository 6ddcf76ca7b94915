"""One line of a checkup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainwiz.finding import Level
from trainwiz.message import Message, say


@dataclass(frozen=True)
class Found:
    """What was found about a subject. Plain strings are data, the same in every language."""

    found: Message | str
    """What it is: a version, a number of bytes, what is missing."""
    level: Level | None = None
    """None: good."""
    fix: Message | None = None
    """What to type."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A subject with what was found about it."""

    subject: str
    """A stable name, for JSON."""
    title: Message | str
    """The subject's name, as it is shown."""
    found: Message | str
    """What it is: a version, a number of bytes, what is missing."""
    level: Level | None = None
    """None: good."""
    fix: Message | None = None
    """What to type."""
    # docs/decisions/rules.md: What is a rule, and what is a line of doctor
    rules: tuple[str, ...] = ()
    """The ids of the rules on the same subject."""
    rule: str | None = None
    """The id of the rule that is violated."""


def line(subject: str, title: Message | str, found: Found, *, rules: tuple[str, ...] = ()) -> Line:
    """The line of a subject."""
    return Line(subject=subject, title=title, found=found.found, level=found.level, fix=found.fix, rules=rules)


def joined(parts: Iterable[Message | str]) -> Message | str:
    """The parts as a list with commas."""
    first, *others = list(parts) or [say("none")]
    for other in others:
        first = say("{before}, {it}", before=first, it=other)
    return first
