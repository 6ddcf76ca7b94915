"""Conversations and preferences, read by the code that the training reads them with."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trainwiz import resources
from trainwiz.language import t
from trainwiz.probe import first_rows
from trainwiz.probe.data import Reading
from trainwiz.probe.first_rows import Head

_MOST_ROWS = 200
"""How many rows of a file are read."""


def problem(file: Path, head: Head, reading: Reading, *, compares: bool) -> str:
    """The first row that the training would refuse, and why; empty: none of those looked at."""
    is_table, answered = first_rows.kind(file) in first_rows.STORED, False
    rows = head.rows[:_MOST_ROWS]
    for line, row in rows:
        found = _read(row, reading.columns or "", compares=compares, is_table=is_table)
        answered = answered or compares or (not isinstance(found, str) and any(found.learned[1:]))
        if isinstance(found, str):
            return t(
                "{file}: line {line}: this conversation cannot be used: {reason}",
                file=file.name,
                line=line,
                reason=found,
            )
    if rows and not answered and reading.answers_only:
        return t(
            "{file}: none of the first {count} conversations has an answer to learn", file=file.name, count=len(rows)
        )
    return ""


def _read(row: Mapping[str, Any], columns: str, *, compares: bool, is_table: bool) -> Any:
    """A row as the training reads it, or why it cannot."""
    conversations, preferences = _modules()
    try:
        value = conversations.dense(dict(row)) if is_table else dict(row)
        if columns:
            value, _ = conversations.column_names.renamed(value, columns)
        return (preferences.preference_of if compares else conversations.conversation_of)(value)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        return str(error) if type(error) is ValueError else repr(error)


@functools.cache
def _modules() -> tuple[ModuleType, ModuleType]:
    """The generated conversations.py and preferences.py, from their templates; they leave no names in sys.modules."""
    folder = resources.train_templates() / "parts"
    names = {file.stem for file in folder.glob("*.py")}
    hidden = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("conversations"), importlib.import_module("preferences")
    finally:
        sys.path.remove(str(folder))
        for name in names & sys.modules.keys():
            del sys.modules[name]
        sys.modules.update(hidden)
