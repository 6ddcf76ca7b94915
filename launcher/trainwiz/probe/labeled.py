"""Texts with labels, as the tasks on them read them, and how many there are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trainwiz.files import opened
from trainwiz.language import t
from trainwiz.probe import first_rows, labels, sources
from trainwiz.probe.data import Kind, Reading
from trainwiz.probe.first_rows import Head
from trainwiz.project import DataFacts
from trainwiz.vocabulary import EMBEDDED

CHAPTERS = ("compound", "debugger", "specialnames", "string-methods", "types")
"""The chapters of Python's language reference that are the classes of the embedded texts."""
_MOST = 3e38
"""About the largest number of 32 bits; NaN is not below it."""
_SECONDS = 0.2
"""If counting takes longer, the number of samples stays unknown."""


def _paragraphs(split: str) -> Iterator[int]:
    """The number of paragraphs of each chapter, of which task.py evaluates on every fifth."""
    from pydoc_data.topics import topics

    for chapter in CHAPTERS:
        lengths = [len(" ".join(paragraph.split())) for paragraph in topics[chapter].split("\n\n")]
        paragraphs = sum(length >= 40 for length in lengths)
        yield paragraphs // 5 if split == "validation" else paragraphs - paragraphs // 5


def _lines(path: Path) -> int | None:
    began, count, last = time.monotonic(), 0, b"\n"
    with opened(path) as content:
        while chunk := content.read(1 << 20):
            count, last = count + chunk.count(b"\n"), chunk
            if time.monotonic() - began > _SECONDS:
                return None
    return count + (not last.endswith(b"\n"))


def _texts(files: Sequence[Path], reading: Reading) -> DataFacts:
    return _counted(files, _looked_at(files, labels.of_rows, reading), reading)


def _scored(files: Sequence[Path], reading: Reading) -> DataFacts:
    return _counted(files, _looked_at(files, _wrong_number, reading), reading)


def _tagged(files: Sequence[Path], reading: Reading) -> DataFacts:
    return _counted(files, _looked_at(files, _wrong_tags, reading), reading)


def _wrong_tags(file: Path, head: Head, reading: Reading) -> str:
    """Why the first rows of a file are not texts with any number of labels; empty if no reason is found."""
    for number, row in head.rows:
        if problem := labels.lacks_labels(file, number, row, reading):
            return problem
    found = [labels.label_of(row, reading) for _, row in head.rows]
    said = labels.no_tags(
        labels.as_classes(found) if is_table(file) else found, head.whole and reading.split == "train"
    )
    return f"{file.name}: {said}" if said else ""


def _looked_at(files: Sequence[Path], problem: Callable[[Path, Head, Reading], str], reading: Reading) -> DataFacts:
    return sources.looked_at(files, lambda file, head: problem(file, head, reading), reading, reading.text_column)


def _wrong_number(file: Path, head: Head, reading: Reading) -> str:
    """Why the first rows of a file are not texts with a number; empty if no reason is found."""
    for number, row in head.rows:
        if problem := labels.lacks_label(file, number, row, reading):
            return problem
    if head.rows and is_table(file) and (problem := labels.headless(file, [], reading)):
        return problem
    for number, row in head.rows:
        label = row[reading.label_column]
        (value,) = labels.as_numbers([label]) if is_table(file) else (label,)
        if type(value) not in (int, float) or not abs(value) < _MOST:
            return t(
                '{file}: line {line}: "{column}" is not a number: {value}',
                file=file.name,
                line=number,
                column=reading.label_column,
                value=json.dumps(label, ensure_ascii=False, default=str)[:60],
            )
    return ""


def is_table(file: Path) -> bool:
    return first_rows.kind(file) in (".csv", ".tsv")


def _counted(files: Sequence[Path], found: DataFacts, reading: Reading) -> DataFacts:
    """The facts with the number of samples, where each row or line is one."""
    if found.samples is not None or reading.fewer:
        return found
    if found.amount and found.amount.exact:
        return replace(found, samples=found.amount.documents)
    if any(file.suffix != ".jsonl" for file in files):
        return found
    counts = [_lines(file) for file in files]
    return replace(found, samples=sum(n for n in counts if n is not None) if None not in counts else None)


def _kind(files: Callable[[Sequence[Path], Reading], DataFacts]) -> Kind:
    return Kind(
        embedded=lambda _, split: DataFacts(name=EMBEDDED, kind="embedded", samples=sum(_paragraphs(split))),
        folder=lambda path, reading: sources.in_folder(path, reading, first_rows.TABLES, files),
        file=lambda path, reading: files([path], reading),
        files=files,
    )


TEXTS = _kind(_texts)
"""Labeled texts: embedded, files, folders of them, or a hub id."""
SCORED_TEXTS = _kind(_scored)
"""The same with a number for each text."""
TAGGED_TEXTS = _kind(_tagged)
"""The same with any number of labels for each text."""
