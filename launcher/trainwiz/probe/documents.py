"""Documents: text files, and how many samples they make, if that is cheap to determine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from trainwiz.estimate import packing
from trainwiz.language import t
from trainwiz.probe.data import Kind, Reading
from trainwiz.project import DataFacts
from trainwiz.vocabulary import EMBEDDED

SUFFIXES = (".txt", ".jsonl")
LISTS = (".jsonl", ".json")
"""Files with many documents."""
TABLES = (".csv", ".tsv", ".parquet")
SECONDS = 0.2
"""If listing a folder takes longer, its size stays unknown."""
HEAD_BYTES = 1 << 16
"""Enough of a file to check its format."""


def _folder(path: Path, reading: Reading) -> DataFacts:
    began, tokens, problem = time.monotonic(), 0, ""
    for file in path.rglob("*"):
        if time.monotonic() - began > SECONDS:
            return DataFacts(name=path.name, kind="folder", detail=problem)
        if file.suffix in SUFFIXES and file.is_file():
            tokens += _tokens(file)
            problem = problem or _problem(file)
    at_most = packing.rows_at_most(tokens, reading.sequence_length, packing=reading.packing)
    return DataFacts(name=path.name, kind="folder", detail=problem, samples_at_most=at_most)


def _file(path: Path, reading: Reading) -> DataFacts:
    if path.suffix not in LISTS:
        return _separate("file", [_tokens(path)], reading, _problem(path))
    at_most = packing.rows_at_most(_tokens(path), reading.sequence_length, packing=reading.packing)
    return DataFacts(name=path.name, kind="file", detail=_problem(path), samples_at_most=at_most)


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


def _problem(file: Path) -> str:
    """Why task.py cannot read the file, by its first lines; empty if no reason is found."""
    try:
        with file.open("rb") as content:
            head = content.read(HEAD_BYTES)
    except OSError as error:
        return t("{file} cannot be read: {problem}", file=file.name, problem=error.strerror or error)
    if file.suffix in TABLES:
        return t('{file} is a table; convert it to a .jsonl file with a "text" per line', file=file.name)
    if file.suffix not in LISTS:
        return _not_utf8(file, head)
    first = head if file.suffix == ".json" else head.partition(b"\n")[0]
    if not head or (len(first) == len(head) == HEAD_BYTES):
        return ""
    try:
        row = json.loads(first)
        text = (row[0] if file.suffix == ".json" else row)["text"]
    except (ValueError, LookupError, TypeError):
        return t('{file}: line 1 is not a JSON object with a "text"', file=file.name)
    return "" if isinstance(text, str) else t('{file}: line 1: "text" is not a string', file=file.name)


def _not_utf8(file: Path, head: bytes) -> str:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # The last character may be cut off.
        if error.start < len(head) - 4 or len(head) < HEAD_BYTES:
            return t(
                "{file}: line {line} is not valid UTF-8", file=file.name, line=head.count(b"\n", 0, error.start) + 1
            )
    return ""


DOCUMENTS = Kind(
    embedded=lambda reading, split: _separate("embedded", list(_topics(split)), reading), folder=_folder, file=_file
)
