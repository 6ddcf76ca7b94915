"""What a log says when a certain thing is wrong, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainwiz.message import Message


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One cause: the words that show it, the cause in a sentence, what to type.

    Any of the patterns suffices; their named groups fill in cause and remedy. `passing`: whether the same start
    again would help (None: nobody can say). `mending` names the change of a plan that helps, if there is one.
    `aftermath`: what other ranks say when one of them fails; it counts only where nothing else is found. `warned`:
    Python's `warnings` say it; whatever else they say, the program went on.
    """

    name: str
    patterns: tuple[re.Pattern[str], ...]
    cause: Message
    remedy: Message
    passing: bool | None = False
    mending: str = ""
    aftermath: bool = False
    warned: bool = False


def known(
    name: str,
    *patterns: str,
    cause: Message,
    remedy: Message,
    passing: bool | None = False,
    mending: str = "",
    aftermath: bool = False,
    warned: bool = False,
) -> Signature:
    """A signature with its patterns compiled; the last line that a pattern matches is the evidence."""
    compiled = tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)
    return Signature(
        name=name,
        patterns=compiled,
        cause=cause,
        remedy=remedy,
        passing=passing,
        mending=mending,
        aftermath=aftermath,
        warned=warned,
    )
