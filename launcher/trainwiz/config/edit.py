"""Changing values in a file's text and leaving everything else as it is: order, comments, spaces."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trainwiz.config import json_reader, yaml_reader
from trainwiz.config.document import Document, KeyPath

_GONE: Any = object()
"""Used as a value: the key is deleted."""


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


# docs/decisions/files.md: YAML and JSON each have their own parser and are edited by position
def edited(document: Document, changes: Mapping[str, Any], *, reason: str = "", keep_null: bool = False) -> str | None:
    """The text with the changes by dotted path; None if they cannot be made with certainty.

    A value of None deletes its key; with `keep_null` it is written as null. With a `reason`, the comment after each
    changed value becomes that reason; JSON and values inside braces have no room for one. The new text is read again,
    and must have exactly the old values with the changes.
    """
    if document.problem or document.duplicates:
        return None
    wanted = {
        tuple(path.split(".")): _GONE if value is None and not keep_null else value for path, value in changes.items()
    }
    renamed = _renamed(document, wanted)
    edits: list[_Edit | None] = [_renaming(document, old, new) for old, new in renamed.items()]
    added: dict[KeyPath, Any] = {}
    for path, value in wanted.items():
        if path in renamed or path in renamed.values():
            continue
        if path not in document.entries:
            added |= {} if value is _GONE else {path: value}
        elif value is _GONE:
            edits.append(_removal(document, path))
        elif not _is_already(document, path, value):
            edits.append(_replacement(document, path, value, reason))
    after = _applied(document, edits)
    for path, value in added.items():
        after = after and _applied(after, [_addition(after, path, value, reason)])
    return after.text if after and _holds(after, _expected(document, wanted)) else None


def with_comment(document: Document, key: str, comment: str) -> Document:
    """The document with another comment after the value of a dotted key; unchanged if there is no room for one."""
    path = tuple(key.split("."))
    entry = document.entries[path]
    end = max(entry.value.start + len(document.text[entry.value.start : entry.value.end].rstrip()), entry.value.start)
    line_end = document.text.find("\n", end)
    rest = document.text[end : line_end if line_end >= 0 else len(document.text)].removesuffix("\r")
    if entry.flow or (rest.strip() and not rest.lstrip().startswith("#")):
        return document
    after = _applied(document, [_Edit(end, end + len(rest), _comment(document, comment))])
    return after if after and _holds(after, document.values) else document


def _applied(document: Document, edits: list[_Edit | None]) -> Document | None:
    """The document after the edits; None where one of them is None, or where the text can no longer be read."""
    text = document.text
    known = [edit for edit in edits if edit]
    for edit in sorted(known, key=lambda e: (e.start, e.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    reader = json_reader if document.syntax == "json" else yaml_reader
    after = reader.read(document.path, text)
    return None if after.problem or len(known) < len(edits) else after


def _holds(document: Document, expected: Mapping[str, Any]) -> bool:
    try:
        return bool(_tidy(document.values) == _tidy(expected))
    except RecursionError:  # an anchor that contains itself
        return False


def _is_already(document: Document, path: KeyPath, value: Any) -> bool:
    present = document.get(".".join(path))
    return type(present) is type(value) and bool(present == value)


def _renamed(document: Document, wanted: Mapping[KeyPath, Any]) -> dict[KeyPath, KeyPath]:
    """The keys that are deleted, each with the new key of the same block that takes over its value."""
    renamed: dict[KeyPath, KeyPath] = {}
    for new, value in wanted.items():
        if value is _GONE or new in document.entries:
            continue
        gone = [p for p, v in wanted.items() if v is _GONE and p[:-1] == new[:-1] and p in document.entries]
        old = next((p for p in gone if document.get(".".join(p)) == value and p not in renamed), None)
        if old is not None:
            renamed[old] = new
    return renamed


def _renaming(document: Document, old: KeyPath, new: KeyPath) -> _Edit | None:
    key = document.entries[old].key
    return _Edit(key.start, key.end, _scalar(document, new[-1])) if key else None


def _replacement(document: Document, path: KeyPath, value: Any, reason: str) -> _Edit:
    entry, text = document.entries[path], document.text
    start = entry.value.start
    # A block's span reaches to where the next key begins.
    end = max(start + len(text[start : entry.value.end].rstrip()), start)
    space = "" if text[start - 1 : start] in (" ", "\n", "[", "{", "") else " "
    comment = "" if entry.flow else _comment(document, reason)
    line_end = text.find("\n", end)
    rest = text[end : line_end if line_end >= 0 else len(text)].removesuffix("\r")
    if comment and (not rest.strip() or rest.lstrip().startswith("#")):
        return _Edit(start, end + len(rest), f"{space}{_written(document, value)}{comment}")
    return _Edit(start, end, space + _written(document, value))


def _addition(document: Document, path: KeyPath, value: Any, reason: str) -> _Edit | None:
    """A new entry after the last one of its mapping; the mapping is created if there is none."""
    parent, key = path[:-1], path[-1]
    siblings = [p for p in document.entries if len(p) == len(path) and p[:-1] == parent]
    if not siblings:
        if parent and parent in document.entries:
            return _replacement(document, parent, {key: value}, reason)
        return _addition(document, parent, {key: value}, reason) if parent else None
    last = document.entries[siblings[-1]]
    if last.key is None:
        return None
    line = document.text.rfind("\n", 0, last.key.start) + 1
    indent = document.text[line : last.key.start]
    if last.flow:
        pair = f"{_scalar(document, key)}: {_written(document, value)}"
        own_line = not indent.strip()
        return _Edit(last.value.end, last.value.end, f",\n{indent}{pair}" if own_line else f", {pair}")
    if indent.strip():
        return None
    end = _line_end(document, siblings[-1])
    before = "" if document.text[:end].endswith("\n") else "\n"
    lines = before + _block(document, indent, key, value, reason)
    return _Edit(end, end, lines.replace("\n", "\r\n") if "\r\n" in document.text else lines)


def _block(document: Document, indent: str, key: str, value: Any, reason: str) -> str:
    """Lines of a block for a key and its value, with the reason behind each value."""
    name = f"{indent}{_scalar(document, key)}:"
    if isinstance(value, Mapping) and value:
        return f"{name}\n" + "".join(_block(document, f"{indent}  ", k, v, reason) for k, v in value.items())
    return f"{name} {_written(document, value)}{_comment(document, reason)}\n"


def _removal(document: Document, path: KeyPath) -> _Edit | None:
    entry, text = document.entries[path], document.text
    if entry.key is None:
        return None
    start = text.rfind("\n", 0, entry.key.start) + 1
    alone_before = not text[start : entry.key.start].strip()
    if not entry.flow:
        return _Edit(start, _line_end(document, path), "") if alone_before else None
    end = entry.value.end
    behind = text[end:].lstrip()
    if behind.startswith(","):
        end += len(text[end:]) - len(behind) + 1
        rest = text[end:].partition("\n")[0]
        if alone_before and not rest.strip():
            return _Edit(start, end + len(rest) + 1, "")
        return _Edit(entry.key.start, end + len(rest) - len(rest.lstrip()), "")
    # The last entry of a mapping takes the comma before it along.
    before = text[: entry.key.start].rstrip()
    return _Edit(len(before) - 1 if before.endswith(",") else entry.key.start, end, "")


def _line_end(document: Document, path: KeyPath) -> int:
    """The beginning of the line after an entry of a block."""
    entry, text = document.entries[path], document.text
    key_end = entry.key.end if entry.key else entry.value.start
    written = text[entry.value.start : entry.value.end].rstrip()
    end = max(key_end, entry.value.start + len(written)) if written else key_end
    newline = text.find("\n", end)
    return len(text) if newline < 0 else newline + 1


def _comment(document: Document, reason: str) -> str:
    return f"  # {' '.join(reason.split())}" if reason and document.syntax == "yaml" else ""


def _written(document: Document, value: Any) -> str:
    if document.syntax == "json":
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(document, k)}: {_written(document, v)}" for k, v in value.items()) + "}"
    return _scalar(document, value)


def _scalar(document: Document, value: Any) -> str:
    if document.syntax == "json" or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        plain = bool(value) and value == value.strip() and value.isprintable()
        try:
            if plain and yaml.safe_load(f"k: {value}") == {"k": value} and not set(value) & set("{}[],&*#?|<>=!%@`"):
                return value
        except yaml.YAMLError:
            pass
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):  # json's 1e-05 is a word to YAML
        return str(yaml.safe_dump(value)).partition("\n")[0]
    return json.dumps(value, default=str)


def _expected(document: Document, wanted: Mapping[KeyPath, Any]) -> dict[str, Any]:
    values: dict[str, Any] = copy.deepcopy(dict(document.values))
    # Keys are dropped before others are set, so that a renamed one may take its place.
    for path, value in sorted(wanted.items(), key=lambda item: item[1] is not _GONE):
        here: Any = values
        for key in path[:-1]:
            if not isinstance(here.get(key), dict):
                here[key] = {}
            here = here[key]
        if value is _GONE:
            here.pop(path[-1], None)
        else:
            here[path[-1]] = value
    return values


def _tidy(value: Any) -> Any:
    """Without empty blocks: a block whose only key was deleted is null to YAML."""
    if isinstance(value, Mapping):
        return {key: tidied for key, item in value.items() if (tidied := _tidy(item)) not in (None, {})}
    return value
