"""Documents: text files, and how many samples they make, if that is cheap to determine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trainwiz.estimate import packing
from trainwiz.probe import first_rows, sources, splits
from trainwiz.probe.data import Kind, Reading
from trainwiz.probe.first_rows import TABLES, Head
from trainwiz.project import DataFacts
from trainwiz.vocabulary import EMBEDDED

SUFFIXES = (*TABLES, ".txt")
SECONDS = 0.2
"""If listing a folder takes longer, its size stays unknown."""


def _folder(path: Path, reading: Reading) -> DataFacts:
    inside = splits.of_folder(path, SUFFIXES, reading.split, seconds=SECONDS)
    if inside.complete:
        return sources.about(inside, replace(_files(inside.files, reading), name=path.name))
    looked_at = (_looked_at([file], reading) for file in inside.files)
    bad = next((facts for facts in looked_at if facts.detail), None)
    return DataFacts(
        name=path.name, kind="folder", detail=bad.detail if bad else "", remedy=bad.remedy if bad else None
    )


def _file(path: Path, reading: Reading) -> DataFacts:
    if first_rows.kind(path) in TABLES or not first_rows.plain(path):
        return _files([path], reading)
    looked_at = _looked_at([path], reading)
    found = _separate("file", [_tokens(path)], reading, looked_at.detail)
    samples = None if reading.fewer else found.samples
    return replace(found, samples=samples, amount=looked_at.amount, remedy=looked_at.remedy)


def _files(files: Sequence[Path], reading: Reading) -> DataFacts:
    most = None
    if all(map(first_rows.plain, files)):
        tokens = sum(map(_tokens, files))
        most = packing.rows_at_most(tokens, reading.sequence_length, packing=reading.packing)
    found = _looked_at(files, reading)
    return replace(found, samples_at_most=most)


def _separate(kind: str, tokens: list[int], reading: Reading, detail: str = "") -> DataFacts:
    """The facts about documents of so many tokens each; their number is an upper bound with a tokenizer."""
    samples = packing.rows(tokens, reading.sequence_length, packing=reading.packing)
    known = samples if reading.as_bytes else None
    return DataFacts(name=EMBEDDED, kind=kind, detail=detail, samples=known, samples_at_most=samples)


def _tokens(file: Path) -> int:
    """The bytes of a file and an end token; too many for a .jsonl file, which also holds keys and quotes."""
    try:
        size = file.stat().st_size
    except OSError:
        return 0
    return size + 1 if size else 0


def _topics(split: str) -> Iterator[int]:
    """The tokens of each topic of Python's language reference, of which task.py evaluates on every tenth."""
    from pydoc_data.topics import topics

    for i, name in enumerate(sorted(topics)):
        if (i % 10 == 9) == (split == "validation"):
            yield len(topics[name].encode()) + 1


def _looked_at(files: Sequence[Path], reading: Reading) -> DataFacts:
    return sources.looked_at(files, lambda file, head: _row_problem(file, head, reading), reading, reading.text_column)


def _row_problem(file: Path, head: Head, reading: Reading) -> str:
    problems = (sources.lacks(file, line, row, reading.text_column) for line, row in head.rows)
    return next(filter(None, problems), "")


DOCUMENTS = Kind(
    embedded=lambda reading, split: _separate("embedded", list(_topics(split)), reading),
    folder=_folder,
    file=_file,
    files=_files,
)
