"""A configuration's text, its values, and where in the text each of them stands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from trainwiz.finding import Place
from trainwiz.message import Message

KeyPath = tuple[str, ...]
"""The keys from the top down to a value; items of a list count as `0`, `1`, …"""
DEEPEST = 50
"""Keys above one another; no configuration has ten, and what goes through thousands of them runs out of stack."""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of the text, from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a key and its value stand. Items of a list have no key."""

    value: Span
    key: Span | None = None
    flow: bool = False
    """Whether it stands inside braces or brackets, as everything in JSON does."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that stands twice. `first` is lost: the last one counts."""

    path: KeyPath
    first: Span
    last: Span


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a file cannot be read, and at which character. `fix` is what to do about it."""

    message: Message
    at: int = 0
    fix: Message | None = None


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file as it is. Without `trouble`, `values` is what its engine would read; with it, `values` is empty."""

    path: str
    text: str
    syntax: Literal["yaml", "json"]
    values: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[KeyPath, Entry] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()
    trouble: Trouble | None = None

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path, `default` where it or anything above it is not there."""
        value: Any = self.values
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    def has(self, path: str) -> bool:
        """Whether a dotted path stands in the file, with whatever value."""
        return tuple(path.split(".")) in self.entries

    def raw(self, path: str) -> str:
        """The value at a dotted path as it is written."""
        span = self.entries[tuple(path.split("."))].value
        return self.text[span.start : span.end]

    def place(self, path: str) -> Place | None:
        """Where a dotted path stands: its key; the nearest key above it where it is not there."""
        keys = tuple(path.split("."))
        while keys and keys not in self.entries:
            keys = keys[:-1]
        entry = self.entries.get(keys)
        return self.at(entry.key or entry.value) if entry else self.at(Span(0, 0))

    def at(self, span: Span) -> Place:
        """A span of the text as line and columns."""
        line = bisect_right(self._line_starts, span.start)
        start = self._line_starts[line - 1]
        end = self.text.find("\n", span.start)
        last = min(span.end, end if end >= 0 else len(self.text))
        return Place(file=self.path, line=line, column=span.start - start + 1, width=max(1, last - span.start))

    def at_character(self, offset: int) -> Place:
        """One character of the text."""
        return self.at(Span(offset, offset + 1))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(i + 1 for i, character in enumerate(self.text) if character == "\n")]
