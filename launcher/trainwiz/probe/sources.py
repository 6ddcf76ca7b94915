"""Data files, inspected by their first rows: what they lack, and what reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.probe import amounts, first_rows, splits
from trainwiz.probe.data import Reading
from trainwiz.probe.first_rows import Head
from trainwiz.probe.unreadable import Unreadable, rows_within
from trainwiz.project import DataFacts

_MOST_FILES = 100
"""How many files of a folder are looked at."""


def looked_at(
    files: Sequence[Path],
    problem_of: Callable[[Path, Head], str],
    reading: Reading,
    column: str | None = None,
) -> DataFacts:
    """The facts about some files that make one source: the first row, the first problem, how much it is, what reads it.

    `column` holds the texts; None: all of a row is text.
    """
    first: Mapping[str, Any] = {}
    heads = []
    saved = [table for each in files if splits.is_saved(each) for table in splits.tables_of(each, reading.split)]
    plain = [file for file in files if not splits.is_saved(file)]
    for file in (plain + saved)[:_MOST_FILES]:
        try:
            head = first_rows.head(file)
        except Unreadable as error:
            return replace(_facts(files, str(error), first), remedy=error.remedy)
        first = first or first_rows.columns_of(head.rows)
        if problem := problem_of(file, head):
            within = rows_within(file, head.rows[0][1]) if head.whole and len(head.rows) == 1 else None
            return replace(_facts(files, problem, first), remedy=within)
        heads.append((file, head))
    whole = heads and plain == list(files)
    found = amounts.amount(heads, files, column, as_bytes=reading.as_bytes) if whole else None
    facts = replace(_facts(files, "", first), amount=found)
    empty = whole and all(head.whole and not head.rows for _, head in heads)
    return replace(facts, samples=0) if empty else facts


def in_folder(
    path: Path, reading: Reading, suffixes: Sequence[str], facts: Callable[[Sequence[Path], Reading], DataFacts]
) -> DataFacts:
    """The facts about the files of a folder that are read."""
    inside = splits.of_folder(path, suffixes, reading.split)
    return about(inside, facts(inside.files, reading))


def about(inside: splits.Inside, found: DataFacts) -> DataFacts:
    """The facts about the files of a folder, with those about the folder."""
    return replace(
        found,
        kind="folder",
        parts=inside.parts,
        evaluation_part=inside.evaluation_part,
        left_out=inside.left_out,
        unnamed=inside.unnamed,
    )


def _facts(files: Sequence[Path], detail: str, first: Mapping[str, Any]) -> DataFacts:
    stored = any(splits.is_saved(f) or f.suffix == ".zst" or first_rows.kind(f) in first_rows.STORED for f in files)
    packages = ("datasets",) if stored else ()
    name = files[0].name if files else ""
    samples = None if files else 0
    return DataFacts(name=name, kind="file", detail=detail, samples=samples, first=first, packages=packages)


def rows_at_most(files: Sequence[Path], found: DataFacts, *, least_bytes: int) -> int | None:
    """The number of rows where all were read, else what fits into the files' bytes; None for compressed files."""
    if found.amount and found.amount.exact:
        return found.amount.documents
    plain = all(map(first_rows.plain, files))
    return -(-sum(file.stat().st_size for file in files) // least_bytes) if plain else None


def lacks(file: Path, line: int, row: Mapping[str, Any], column: str) -> str:
    """Why a row has no text in this column; empty if it has."""
    if column not in row:
        return t(
            '{file}: line {line} has no column "{column}"; it has {columns}',
            file=file.name,
            line=line,
            column=column,
            columns=", ".join(map(str, row)) or "-",
        )
    if isinstance(row[column], str):
        return ""
    return t(
        '{file}: line {line}: "{column}" is not a string: {value}',
        file=file.name,
        line=line,
        column=column,
        value=json.dumps(row[column], ensure_ascii=False, default=str)[:60],
    )
