"""Changing values in a configuration's text and leaving everything else as it is: order, comments, spaces."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trainwiz.config import json_reader, yaml_reader
from trainwiz.config.document import Document, KeyPath


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


def edited(document: Document, changes: Mapping[str, Any]) -> str | None:
    """The text with the changes by dotted path; None deletes a key. None if it cannot be done without a doubt.

    What comes out is read again and must hold exactly the old values with the changes.
    """
    if document.trouble or document.duplicates:
        return None
    edits = _edits(document, {tuple(path.split(".")): value for path, value in changes.items()})
    if edits is None:
        return None
    text = document.text
    for edit in sorted(edits, key=lambda e: (e.start, e.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    reader = json_reader if document.syntax == "json" else yaml_reader
    again = reader.read(document.path, text)
    return text if not again.trouble and _holds(again, _expected(document, changes)) else None


def _holds(document: Document, expected: Mapping[str, Any]) -> bool:
    try:
        return bool(_tidy(document.values) == _tidy(expected))
    except RecursionError:  # an anchor that stands inside itself
        return False


def _edits(document: Document, changes: Mapping[KeyPath, Any]) -> list[_Edit] | None:
    edits, renamed = [], set()
    for new, value in changes.items():
        if value is None or new in document.entries:
            continue
        same_block = [p for p, v in changes.items() if v is None and p[:-1] == new[:-1] and p in document.entries]
        old = next((p for p in same_block if document.get(".".join(p)) == value and p not in renamed), None)
        if old is None:
            edits.append(_addition(document, new, value))
        else:
            renamed.add(old)
            key = document.entries[old].key
            edits.append(_Edit(key.start, key.end, _scalar(document, new[-1])) if key else None)
    for path, value in changes.items():
        entry = document.entries.get(path)
        if entry is None or path in renamed:
            continue
        edits.append(_removal(document, path) if value is None else _replacement(document, path, value))
    return None if None in edits else [edit for edit in edits if edit]


def _replacement(document: Document, path: KeyPath, value: Any) -> _Edit:
    span = document.entries[path].value
    old = document.text[span.start : span.end]
    # A block's span reaches to where the next key begins.
    end = span.start + len(old.rstrip())
    space = "" if document.text[span.start - 1 : span.start] in (" ", "\n", "[", "{", "") else " "
    return _Edit(span.start, max(end, span.start), space + _written(document, value))


def _addition(document: Document, path: KeyPath, value: Any) -> _Edit | None:
    """A new entry behind the last one of its mapping; the mapping itself is made where there is none."""
    parent, key = path[:-1], path[-1]
    siblings = [p for p in document.entries if len(p) == len(path) and p[:-1] == parent]
    if not siblings:
        if parent and parent in document.entries:
            return _replacement(document, parent, {key: value})
        return _addition(document, parent, {key: value}) if parent else None
    last = document.entries[siblings[-1]]
    if last.key is None:
        return None
    pair = f"{_scalar(document, key)}: {_written(document, value)}"
    line = document.text.rfind("\n", 0, last.key.start) + 1
    indent = document.text[line : last.key.start]
    if last.flow:
        own_line = not indent.strip()
        return _Edit(last.value.end, last.value.end, f",\n{indent}{pair}" if own_line else f", {pair}")
    if indent.strip():
        return None
    end = _line_end(document, siblings[-1])
    before = "" if document.text[:end].endswith("\n") else "\n"
    return _Edit(end, end, f"{before}{indent}{pair}\n")


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
    # The last of its mapping takes the comma before it along.
    before = text[: entry.key.start].rstrip()
    return _Edit(len(before) - 1 if before.endswith(",") else entry.key.start, end, "")


def _line_end(document: Document, path: KeyPath) -> int:
    """Where the line after an entry of a block begins."""
    entry, text = document.entries[path], document.text
    key_end = entry.key.end if entry.key else entry.value.start
    written = text[entry.value.start : entry.value.end].rstrip()
    end = max(key_end, entry.value.start + len(written)) if written else key_end
    newline = text.find("\n", end)
    return len(text) if newline < 0 else newline + 1


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
    return ".inf" if value == math.inf else json.dumps(value, default=str)


def _expected(document: Document, changes: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = copy.deepcopy(dict(document.values))
    # Keys are dropped before others are set, so that a renamed one may take its place.
    for path, value in sorted(changes.items(), key=lambda item: item[1] is not None):
        *parents, last = path.split(".")
        here: Any = values
        for key in parents:
            if not isinstance(here.get(key), dict):
                here[key] = {}
            here = here[key]
        if value is None:
            here.pop(last, None)
        else:
            here[last] = value
    return values


def _tidy(value: Any) -> Any:
    """Without empty blocks: a block whose only key went is null to YAML."""
    if isinstance(value, Mapping):
        return {key: tidied for key, item in value.items() if (tidied := _tidy(item)) not in (None, {})}
    return value
