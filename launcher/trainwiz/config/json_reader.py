"""JSON as Python's `json` reads it, which is how accelerate does, with positions.

DeepSpeed by itself reads Hjson: comments and commas before closing brackets are skipped, and recorded.

YAML's parser would read most JSON too, but not its tabs, and it takes `1e-4` for a word.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from trainwiz.config.document import BYTE_ORDER_MARK, DEEPEST, Document, Duplicate, Entry, KeyPath, Problem, Span
from trainwiz.message import Message, say

_SPACE = re.compile(r"[ \t\n\r]*")
_WORD = re.compile(r"[^,\]}\s]+")
_COMMENT = re.compile(r"//|#|/\*")
_QUOTED = r'("(?:[^"\\\n]|\\.)*")'
_PAST = re.compile(_QUOTED + r"|//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(_QUOTED + r"|,(?=\s*[}\]])")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def read(path: str, text: str) -> Document:
    """The document in a text; with its `problem` where there is none."""
    document = _strict(path, text)
    plain = _blanked(text) if document.problem else text
    if plain == text:
        return document
    read_past = _strict(path, plain)
    return document if read_past.problem else replace(read_past, text=text, loose=document.problem)


def _blanked(text: str) -> str:
    """The text with spaces in place of everything that Hjson skips, so that positions stay."""
    text = _PAST.sub(lambda found: found.group(1) or re.sub(r"[^\n]", " ", found.group()), text)
    text = _LAST_COMMA.sub(lambda found: found.group(1) or f" {found.group()[1:]}", text)
    return text.replace(BYTE_ORDER_MARK, " ", 1) if text.startswith(BYTE_ORDER_MARK) else text


def _strict(path: str, text: str) -> Document:
    scanner = _Scanner(text)
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            return _unreadable(path, text, Problem(_kind(values), fix=say("write keys with values in braces")))
        scanner.value(_skip(text, 0), ())
    except json.JSONDecodeError as error:
        return _unreadable(path, text, _syntax(error, text))
    except RecursionError:
        return _unreadable(path, text, Problem(say("brackets are nested too deeply")))
    except ValueError as error:
        return _unreadable(path, text, Problem(say("{problem}", problem=error)))
    return Document(
        path=path,
        text=text,
        syntax="json",
        values=values,
        entries=scanner.entries,
        duplicates=tuple(scanner.duplicates),
    )


def _unreadable(path: str, text: str, problem: Problem) -> Document:
    return Document(path=path, text=text, syntax="json", problem=problem)


@dataclass
class _Scanner:
    """Goes through a text that is known to be JSON. Each method returns where what it read ends."""

    text: str
    entries: dict[KeyPath, Entry] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)

    def value(self, at: int, path: KeyPath) -> int:
        if len(path) > DEEPEST:
            raise RecursionError
        if self.text[at] == "{":
            return self._object(at, path)
        if self.text[at] == "[":
            return self._list(at, path)
        if self.text[at] == '"':
            return self._string(at)[1]
        word = _WORD.match(self.text, at)
        return word.end() if word else at + 1

    def _string(self, at: int) -> tuple[str, int]:
        read: tuple[str, int] = scanstring(self.text, at + 1, False)
        return read

    def _object(self, at: int, path: KeyPath) -> int:
        seen: dict[str, Span] = {}
        at = _skip(self.text, at + 1)
        while self.text[at] != "}":
            name, end = self._string(at)
            key = Span(at, end)
            start = _skip(self.text, _skip(self.text, end) + 1)
            end = self.value(start, (*path, name))
            if name in seen:
                self.duplicates.append(Duplicate((*path, name), seen[name], key))
            seen[name] = key
            self.entries[(*path, name)] = Entry(Span(start, end), key, flow=True)
            at = self._next(end)
        return at + 1

    def _list(self, at: int, path: KeyPath) -> int:
        at, i = _skip(self.text, at + 1), 0
        while self.text[at] != "]":
            end = self.value(at, (*path, str(i)))
            self.entries[(*path, str(i))] = Entry(Span(at, end), flow=True)
            at, i = self._next(end), i + 1
        return at + 1

    def _next(self, end: int) -> int:
        at = _skip(self.text, end)
        return _skip(self.text, at + 1) if self.text[at] == "," else at


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _syntax(error: json.JSONDecodeError, text: str) -> Problem:
    if not text.strip():
        return Problem(say("the file is empty"), 0)
    if _COMMENT.match(text, error.pos):
        return Problem(
            say("a comment; JSON does not allow comments"),
            error.pos,
            say("delete it, or move it to a key like _comment"),
        )
    word = _WORD.match(text, error.pos)
    if word and word.group() in _PYTHON:
        return Problem(
            say("{word} is Python syntax, not JSON", word=word.group()),
            error.pos,
            say("write {value}", value=_PYTHON[word.group()]),
        )
    if text.startswith("\ufeff"):
        return Problem(
            say("the file begins with a byte order mark (BOM), which JSON does not allow"),
            0,
            say("save it as UTF-8 without BOM"),
        )
    if text[error.pos : error.pos + 1] == "'":
        return Problem(say("single quotes; JSON requires double quotes"), error.pos, say('use double quotes (")'))
    before = text[: error.pos].rstrip()
    # Python 3.13 points at the comma itself, older ones at what follows it. At the end of a cut file nothing follows.
    following = text[error.pos : error.pos + 1]
    if before.endswith(","):
        if following and following in "}]":
            return Problem(say("trailing comma before the closing bracket"), len(before) - 1, say("delete the comma"))
    elif following == "," and text[error.pos + 1 :].lstrip()[:1] in ("}", "]"):
        return Problem(say("trailing comma before the closing bracket"), error.pos, say("delete the comma"))
    return Problem(say("not valid JSON: {problem}", problem=error.msg), min(error.pos, max(0, len(text) - 1)))


def _kind(value: Any) -> Message:
    if isinstance(value, list):
        return say("the file contains a list, not keys with values")
    return say("the file contains a single value, not keys with values")
