"""One line of a checkup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainwiz.finding import Level
from trainwiz.message import Message, say


@dataclass(frozen=True, kw_only=True)
class Line:
    """What was found about a subject; `level` None is good. `fix` is what to type.

    A plain string is data, the same in every language. `subject` is its stable name in JSON. `rules` are the ids of
    the rules that judge the same thing, `rule` the one that found fault.
    """

    subject: str
    title: Message | str
    found: Message | str
    level: Level | None = None
    fix: Message | None = None
    rules: tuple[str, ...] = ()
    rule: str | None = None


def joined(parts: Iterable[Message | str]) -> Message | str:
    """The parts as a list with commas."""
    first, *others = list(parts) or [say("none")]
    for other in others:
        first = say("{before}, {it}", before=first, it=other)
    return first
