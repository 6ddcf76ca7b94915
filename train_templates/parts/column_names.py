"""Columns of data with custom names: which one is read as the prompt, the answer, and so on.

`prompt=问题,completion=回答` reads the column 问题 as a prompt, and 回答 as its answer. A name that is not a column can
be a path into one: `answers.text.0` is the first item of `text` in the column `answers`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

WORDS = {
    "messages": ("messages", "conversations", "conversation"),
    "system": ("system", "system_prompt"),
    "tools": ("tools", "functions"),
    "history": ("history",),
    "prompt": ("instruction", "prompt", "query", "question", "problem"),
    "input": ("input", "context"),
    "completion": ("output", "completion", "response", "answer", "solution", "target"),
    "chosen": ("chosen", "chosen_response", "chosen_messages", "preferred_output", "preferred"),
    "rejected": ("rejected", "rejected_response", "rejected_messages", "non_preferred_output", "dispreferred"),
    "label": ("label", "kto_tag"),
}
"""What a column can be read as, each with the names that are recognized by default."""
ASIDE = {"prompt": ("messages",), "completion": ("messages", "chosen", "rejected")}
"""What a row may hold instead of a word that is named: it is then ignored."""


@functools.cache
def named(columns: str) -> dict[str, str]:
    """Return the column that is read as each word."""
    return dict(pair.strip().split("=", 1) for pair in re.split(rf",(?=\s*(?:{'|'.join(WORDS)})=)", columns))


def renamed(row: Any, columns: str) -> tuple[Any, list[str]]:
    """Return a row with its columns renamed to the words that they are read as, and notes on the others."""
    if not isinstance(row, dict):
        return row, []
    names = named(columns)
    found = {word: value_at(row, name) for word, name in names.items()}
    used = {name if name in row else name.partition(".")[0] for name in names.values()}
    replaced = {*names, *(other for word in names for other in ASIDE.get(word, ()))}
    usual = {name for word in replaced for name in WORDS[word]}  # another column replaces them
    told = [f"ignored column: {name}" for name in row if name in usual - used]
    told += [f'no column "{name}"' for word, name in names.items() if found[word] is None]
    told += [f"column {name.partition('.')[0]}: only {name} is read" for name in names.values() if is_cut(row, name)]
    rest = {name: value for name, value in row.items() if name not in usual | used}
    return rest | {word: value for word, value in found.items() if value is not None}, told


def is_cut(row: dict[str, Any], name: str) -> bool:
    """Return whether a path leads to one of several items of a list."""
    listed, _, last = name.rpartition(".")
    whole = value_at(row, listed) if name not in row and listed else None
    return isinstance(whole, list) and len(whole) > 1 and re.fullmatch(r"-?\d+", last) is not None


def value_at(row: dict[str, Any], name: str) -> Any:
    """Return the value of a column, or the value at a path. None: there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and re.fullmatch(r"-?\d+", part):
            value = value[int(part)] if -len(value) <= int(part) < len(value) else None
        else:
            return None
    return value
