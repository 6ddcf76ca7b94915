"""A configuration's text, its values, and the position of each in the text."""

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
"""The deepest nesting that is read. No configuration has ten levels, and thousands of them exhaust the stack."""
BYTE_ORDER_MARK = "\ufeff"
"""Some editors begin a file with it. YAML allows it, JSON does not."""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of the text."""

    start: int
    """The first one, from 0."""
    end: int
    """The one after the last."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The positions of a key and its value."""

    value: Span
    """The value; of a block in YAML, up to where the next key begins."""
    key: Span | None = None
    """The key; None for an item of a list."""
    flow: bool = False
    """Whether it is inside braces or brackets, as everything in JSON is."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that is given twice."""

    path: KeyPath
    """The key."""
    first: Span
    """Where it is given first; its value is lost."""
    last: Span
    """Where it is given again; this value counts."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a file cannot be read."""

    message: Message
    """What is wrong."""
    at: int = 0
    """The character of the text, from 0."""
    fix: Message | None = None
    """What to do about it."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """The text of a file, and what its engine would read from it."""

    path: str
    """The file's path, as the person named it."""
    text: str
    """The whole text, with its byte order mark if it has one."""
    syntax: Literal["yaml", "json", "shell"]
    """How the text is to be read, by the end of the file's name."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values; empty where the text cannot be read."""
    entries: Mapping[KeyPath, Entry] = field(default_factory=dict)
    """The position of each key and item."""
    duplicates: tuple[Duplicate, ...] = ()
    """The keys that are given twice."""
    problem: Problem | None = None
    """Why the text cannot be read; None where it can."""
    more: tuple[Document, ...] = ()
    """The other jobs of a file that holds several: the same text, with the values and positions of each."""
    reader: Literal["", "accelerate", "deepspeed"] = ""
    """What opens a file of DeepSpeed, where another file or the script says so: accelerate, or DeepSpeed by itself."""
    loose: Problem | None = None
    """What stops Python's `json` in a text that DeepSpeed can read: a comment, a comma; None if nothing does."""

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; `default` where it or anything above it is missing."""
        value: Any = self.values
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    def has(self, path: str) -> bool:
        """Whether the file has this dotted path, with whatever value."""
        return tuple(path.split(".")) in self.entries

    def raw(self, path: str) -> str:
        """The value at a dotted path as it is written."""
        span = self.entries[tuple(path.split("."))].value
        return self.text[span.start : span.end]

    def place(self, path: str) -> Place | None:
        """The place of the key at a dotted path, or of the nearest key above it where the file has no such path."""
        keys = (path,) if (path,) in self.entries else tuple(path.split("."))
        while keys and keys not in self.entries:
            keys = keys[:-1]
        entry = self.entries.get(keys)
        return self.at(entry.key or entry.value) if entry else self.at(Span(0, 0))

    def at(self, span: Span) -> Place:
        """A span of the text as line and columns."""
        line = max(1, bisect_right(self._line_starts, span.start))
        start, at = self._line_starts[line - 1], max(span.start, self._line_starts[0])
        end = self.text.find("\n", at)
        end = end if end >= 0 else len(self.text)
        source = self.text[start:end].removesuffix("\r")
        width = max(1, min(span.end, end) - at)
        return Place(file=self.path, line=line, column=at - start + 1, width=width, source=source)

    def at_character(self, offset: int) -> Place:
        """One character of the text."""
        return self.at(Span(offset, offset + 1))

    @cached_property
    def _line_starts(self) -> list[int]:
        first = 1 if self.text.startswith(BYTE_ORDER_MARK) else 0
        return [first, *(i + 1 for i, character in enumerate(self.text) if character == "\n")]
