"""What a check says: a finding with its level, its place and the smallest fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from trainwiz.message import Message


class Level(str, Enum):
    """How bad: an error fails or trains wrongly, a warning is ignored, slow or fragile, a hint is advice."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, kw_only=True)
class Fix:
    """The smallest remedy: in words, and as plan changes where it is one."""

    message: Message
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A piece of a file's line: lines and columns (characters) count from 1."""

    file: str
    line: int
    column: int = 1
    width: int = 1


@dataclass(frozen=True)
class Violation:
    """What a rule yields. `where` defaults to the rule's field; `place` is where it stands in a file."""

    message: Message
    fix: Fix | None = None
    where: str | None = None
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule's violation with the rule's name and level."""

    rule: str
    level: Level
    where: str
    message: Message
    fix: Fix | None = None
    place: Place | None = None

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


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those findings that forbid a launch."""
    return tuple(f for f in findings if f.level is Level.ERROR)
