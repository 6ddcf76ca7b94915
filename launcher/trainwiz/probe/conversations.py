"""Conversations, as the task sft reads them, and how many samples they make."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainwiz.estimate import packing
from trainwiz.language import t
from trainwiz.probe import first_rows, readers, sources
from trainwiz.probe.data import Kind, Reading
from trainwiz.probe.first_rows import Head
from trainwiz.project import DataFacts
from trainwiz.tasks import chat_columns
from trainwiz.vocabulary import EMBEDDED

MODULES = (
    "builtins collections functools itertools json math operator os os.path pathlib random re shutil statistics string "
    "textwrap time"
)
"""The modules whose documentation is the embedded data."""
_OPTIONAL = frozenset({"system", "tools", "history", "input"})
"""Columns that only a few rows of a dataset may have."""
_LEAST_BYTES = 40
"""The size of the shortest possible conversation in a file."""


def _folder(path: Path, reading: Reading) -> DataFacts:
    return sources.in_folder(path, reading, first_rows.TABLES, _files)


def _files(files: Sequence[Path], reading: Reading) -> DataFacts:
    """A conversation makes at most one sample, packed or not (with a few chat templates, one more per answer)."""
    found = sources.looked_at(files, lambda file, head: _problem(file, head, reading), reading)
    return replace(found, samples_at_most=sources.rows_at_most(files, found, least_bytes=_LEAST_BYTES))


def _embedded(reading: Reading, split: str) -> DataFacts:
    lengths = [min(tokens, reading.sequence_length + 1) for tokens in _lengths(split)]
    samples = packing.rows(lengths, reading.sequence_length, packing=reading.packing)
    known = samples if reading.as_bytes else None
    return DataFacts(name=EMBEDDED, kind="embedded", samples=known, samples_at_most=samples)


def _lengths(split: str) -> Iterator[int]:
    """The tokens of each embedded conversation, one per byte: the role, the text, and an end token."""
    for said in embedded_talks(split):
        yield sum(len(part.encode()) + 1 for part in said)


def embedded_talks(split: str) -> Iterator[list[str]]:
    """The messages of each embedded conversation, each after its role."""
    documented: dict[str, str] = {}
    for module in map(importlib.import_module, MODULES.split()):
        for name, thing in sorted(vars(module).items()):
            members: Mapping[str, Any] = vars(thing) if isinstance(thing, type) else {}
            for path, member in ((name, thing), *((f"{name}.{m}", value) for m, value in sorted(members.items()))):
                text = inspect.getdoc(member) if callable(member) and not re.search(r"(^|\.)_", path) else None
                if text and len(text) >= 40:
                    documented.setdefault(text, path if module.__name__ == "builtins" else f"{module.__name__}.{path}")
    for i, (text, name) in enumerate(documented.items()):
        if (i % 10 == 9) == (split == "validation"):
            first, _, rest = text.partition("\n\n")
            said = [f"user:\nWhat is {name}?", f"assistant:\n{first}"]
            yield said + (["user:\nTell me more.", f"assistant:\n{rest.strip()}"] if rest else [])


def _problem(file: Path, head: Head, reading: Reading) -> str:
    """Why task.py cannot read the file, by its first conversation; empty if no reason is found."""
    if not head.rows:
        return ""
    row = head.rows[0][1]
    if problem := absent(file, head, reading):
        return problem
    if chat_columns.problem(chat_columns.renamed(row, reading.columns), compares=False) is None:
        return readers.problem(file, head, reading, compares=False)
    return t(
        "{file}: the first row has neither messages nor a question with an answer; it has {columns}",
        file=file.name,
        columns=shown(row),
    )


def absent(file: Path, head: Head, reading: Reading) -> str:
    """Which column of data.columns none of the first rows has; empty: they have all."""
    for word, name in chat_columns.named(reading.columns).items() if reading.columns else ():
        if all(_lacks(row, word, name) for _, row in head.rows):
            return t(
                '{file}: data.columns reads "{column}" as {word}, but no row has it; the first row has {columns}',
                file=file.name,
                column=name,
                word=word,
                columns=shown(head.rows[0][1]),
            )
    return ""


def _lacks(row: Mapping[str, Any], word: str, name: str) -> bool:
    """Whether a row lacks such a column, or has no value there although it needs one."""
    if word in _OPTIONAL:
        return not {name, name.partition(".")[0]} & row.keys()
    return chat_columns.value_at(row, name) is None


def shown(row: Mapping[str, Any]) -> str:
    """The columns of a row that are not empty."""
    return ", ".join(sorted(name for name, value in row.items() if value is not None)) or "-"


CONVERSATIONS = Kind(
    embedded=_embedded, folder=_folder, file=lambda path, reading: _files([path], reading), files=_files
)
