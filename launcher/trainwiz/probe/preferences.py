"""Preferences, as the task preference reads them, and how many samples they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainwiz.language import t
from trainwiz.probe import first_rows, readers, sources
from trainwiz.probe.conversations import absent, embedded_talks, shown
from trainwiz.probe.data import Kind, Reading
from trainwiz.probe.first_rows import Head
from trainwiz.project import DataFacts
from trainwiz.tasks import chat_columns
from trainwiz.vocabulary import EMBEDDED

_ANSWER_BEGINS = "assistant:\n"
_LEAST_BYTES = 30
"""The size of the shortest possible answer in a file, with its prompt."""


def _folder(path: Path, reading: Reading) -> DataFacts:
    return sources.in_folder(path, reading, first_rows.TABLES, _files)


def _files(files: Sequence[Path], reading: Reading) -> DataFacts:
    """A row makes one pair, and up to two single answers."""
    found = sources.looked_at(files, lambda file, head: _problem(file, head, reading), reading)
    answers = 1 if reading.two_answers else 2
    rows = sources.rows_at_most(files, found, least_bytes=answers * _LEAST_BYTES)
    return replace(found, samples_at_most=None if rows is None else answers * rows)


def _embedded(reading: Reading, split: str) -> DataFacts:
    """A question with one answer makes a pair if its prompt leaves room for an answer."""
    prompts = [len(talk[0].encode()) + 1 + len(_ANSWER_BEGINS) for talk in embedded_talks(split) if len(talk) == 2]
    pairs = sum(prompt <= reading.sequence_length for prompt in prompts)
    samples = pairs if reading.two_answers else 2 * pairs
    known = samples if reading.as_bytes and not reading.fewer else None
    return DataFacts(name=EMBEDDED, kind="embedded", samples=known, samples_at_most=samples)


def _problem(file: Path, head: Head, reading: Reading) -> str:
    """Why task.py cannot read the file, by its first row; empty if no reason is found."""
    if not head.rows:
        return ""
    if problem := absent(file, head, reading):
        return problem
    row = head.rows[0][1]
    match chat_columns.problem(chat_columns.renamed(row, reading.columns), compares=True):
        case None:
            return readers.problem(file, head, reading, compares=True)
        case "label" if not reading.two_answers:
            return readers.problem(file, head, reading, compares=True)
        case "label":
            return t(
                "{file}: the first row has one answer with a label, which only works with the kto loss; it has "
                "{columns}",
                file=file.name,
                columns=shown(row),
            )
    if name := chat_columns.rated(row):
        return t(
            "{file}: the first row has {count} rated answers in {column}, which do not make a pair",
            file=file.name,
            count=len(row[name]),
            column=name,
        )
    return t(
        "{file}: the first row has neither chosen and rejected answers nor an answer with a label; it has {columns}",
        file=file.name,
        columns=shown(row),
    )


PREFERENCES = Kind(embedded=_embedded, folder=_folder, file=lambda path, reading: _files([path], reading), files=_files)
