"""A known cause of a failure, and the words of a log that show it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainwiz.message import Message


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One known cause."""

    name: str
    """Stable; records and JSON have it."""
    patterns: tuple[re.Pattern[str], ...]
    """Any of them suffices; their named groups fill in `cause` and `remedy`."""
    cause: Message
    remedy: Message
    """What to do, with the words to type."""
    transient: bool | None = False
    """Whether the same launch may succeed when it is repeated; None: unknown."""
    plan_change: str = ""
    """The kind of plan change that helps, as `plan_changes.candidates` takes it; empty: none."""
    secondary: bool = False
    """Whether ranks also write this when another rank fails; it counts only where nothing else is found."""
    at_exit: bool = False
    """Whether native code writes this when the interpreter exits, even after an exception, which is then the cause."""
    as_warning: bool = False
    """Whether the cause is also recognised in a warning of Python's `warnings`, after which programs mostly go on."""


def known(
    name: str,
    *patterns: str,
    cause: Message,
    remedy: Message,
    transient: bool | None = False,
    plan_change: str = "",
    secondary: bool = False,
    at_exit: bool = False,
    as_warning: bool = False,
) -> Signature:
    """A signature with its patterns compiled."""
    compiled = tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)
    return Signature(
        name=name,
        patterns=compiled,
        cause=cause,
        remedy=remedy,
        transient=transient,
        plan_change=plan_change,
        secondary=secondary,
        at_exit=at_exit,
        as_warning=as_warning,
    )
