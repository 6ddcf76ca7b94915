"""What a check says: a finding with its level, its place and the smallest fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from trainwiz.message import Message


# docs/decisions/rules.md: A rule's level says what happens, not how undesirable it is
class Level(str, Enum):
    """How bad: an error fails or trains wrongly, a warning is ignored, slow or fragile, a hint is advice."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Lines of a file that others replace."""

    file: str
    """The file's path, as the person named it."""
    first: int
    """The first line to be replaced, from 1."""
    last: int
    """The last one; one less than the first where lines are only inserted before it."""
    lines: tuple[str, ...]
    """What stands there afterwards."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """The smallest remedy."""

    message: Message
    """What to do, in words."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """The same as new values by dotted key, where changing the plan or the file is enough."""
    edits: tuple[Edit, ...] = ()
    """The same as changed lines of a script, where that needs no question."""
    installs: bool = False
    """Whether it installs packages, which only a launch needs."""
    safe: bool = False
    """Whether the engine reads the old and the new file alike, or stopped at the old one and now does what it means."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A piece of a line in a file."""

    file: str
    """The file's path, as the person named it."""
    line: int
    """The line, from 1."""
    column: int = 1
    """The first character, from 1."""
    width: int = 1
    """Characters."""
    source: str = field(default="", compare=False, repr=False)
    """The text of the whole line, to be shown with a caret; empty where it is unknown."""


@dataclass(frozen=True)
class Violation:
    """What a rule yields."""

    message: Message
    """What is wrong, with the numbers."""
    fix: Fix | None = None
    """What to do about it."""
    where: str | None = None
    """The key that is wrong; the rule's own field where it is left out."""
    place: Place | None = None
    """Where it is in a file."""


Violations = Iterator[Violation]
"""All that a rule yields."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule's violation with the rule's name and level."""

    rule: str
    """The rule's id, like TW401."""
    level: Level
    """How bad it is."""
    where: str
    """The key that is wrong."""
    message: Message
    """What is wrong, with the numbers."""
    fix: Fix | None = None
    """What to do about it."""
    place: Place | None = None
    """Where it is in a file; None for a finding about a plan or a machine."""

    @property
    def file(self) -> str | None:
        """The file that it is about, where it has its place in one."""
        return self.place.file if self.place else None

    @property
    def line(self) -> int | None:
        """The line in that file, from 1."""
        return self.place.line if self.place else None

    @property
    def column(self) -> int | None:
        """The column in that line, from 1."""
        return self.place.column if self.place else None


def remedy(template: str, changes: Mapping[str, Any] | None = None, /, **values: object) -> Fix:
    """A remedy in one literal sentence (see `message.say`), with the changes of a plan or a file that it means."""
    return Fix(message=Message(template, values), changes=changes or {})


def installing(fix: Fix) -> Fix:
    """The remedy as one that installs packages."""
    return replace(fix, installs=True)


def safe(fix: Fix, only_if: bool = True) -> Fix:
    """The remedy as one that needs no question: tests give the file before and after it to the engine."""
    return replace(fix, safe=only_if)


def edited(fix: Fix, edits: tuple[Edit, ...]) -> Fix:
    """The remedy with the changed lines that it means."""
    return replace(fix, edits=edits)


def setting(key: str, value: Any) -> Fix:
    """The remedy that sets one key of a plan."""
    shown = str(value).lower() if isinstance(value, bool) else value
    return remedy("set {key} to {value}", {key: value}, key=key, value=shown)


def violation(
    template: str,
    fix: Fix | None = None,
    /,
    *,
    where: str | None = None,
    place: Place | None = None,
    **values: object,
) -> Violation:
    """What a rule yields, in one literal sentence (see `message.say`)."""
    return Violation(Message(template, values), fix, where, place)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those findings that forbid a launch."""
    return tuple(f for f in findings if f.level is Level.ERROR)
