"""The data set of a plan, and how many samples it makes, if that is cheap to determine."""

from __future__ import annotations

import difflib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainwiz.estimate import packing
from trainwiz.language import t
from trainwiz.probe.cache import HubCache, is_hub_id
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


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How task.py reads data."""

    root: Path
    """The project's folder, from which paths count."""
    cache: HubCache
    sequence_length: int
    """Tokens of a sample."""
    as_bytes: bool
    """Whether each byte is a token; otherwise a tokenizer makes fewer."""
    packing: bool = True
    """Whether several documents share a sample."""


def facts(name: str, reading: Reading, *, split: str) -> DataFacts:
    """The facts about one data set. `split` (train or validation) applies to the embedded one."""
    if name == EMBEDDED:
        return _counted(DataFacts(name=name, kind="embedded"), reading, list(_embedded(split)))
    path = located(reading.root, name)
    try:
        if path.is_dir():
            return _folder(name, path, reading)
        if path.is_file():
            return _counted(DataFacts(name=name, kind="file", detail=_problem(path)), reading, [_tokens(path)])
        if is_hub_id(name, reading.root):
            return DataFacts(name=name, kind="hub", cached=reading.cache.holds("datasets", name))
        return DataFacts(name=name, kind="missing", detail=missing(name, path, reading.root))
    except OSError as error:  # no permission, or a name that is too long
        return DataFacts(name=name, kind="missing", detail=error.strerror or str(error))


def located(root: Path, name: str) -> Path:
    """The path of a name in the project's folder, which need not exist yet."""
    path = root / name
    return path if root.is_dir() else Path(os.path.normpath(path))  # the system cannot resolve ".." in a missing folder


def _folder(name: str, path: Path, reading: Reading) -> DataFacts:
    began, tokens, problem = time.monotonic(), 0, ""
    for file in path.rglob("*"):
        if time.monotonic() - began > SECONDS:
            return DataFacts(name=name, kind="folder", detail=problem)
        if file.suffix in SUFFIXES and file.is_file():
            tokens += _tokens(file)
            problem = problem or _problem(file)
    return _counted(DataFacts(name=name, kind="folder", detail=problem), reading, [tokens])


def _counted(found: DataFacts, reading: Reading, tokens: list[int]) -> DataFacts:
    """The facts with the number of samples that documents of so many tokens make; an upper bound with a tokenizer."""
    apart = Path(found.name).suffix not in LISTS and found.kind != "folder"
    if apart:
        samples = packing.rows(tokens, reading.sequence_length, packing=reading.packing)
    else:
        samples = packing.rows_at_most(sum(tokens), reading.sequence_length, packing=reading.packing)
    return DataFacts(
        name=found.name,
        kind=found.kind,
        detail=found.detail,
        samples=samples if apart and reading.as_bytes else None,
        samples_at_most=samples,
    )


def _tokens(file: Path) -> int:
    """The bytes of a file and an end token; too many for a .jsonl file, which also holds keys and quotes."""
    try:
        size = file.stat().st_size
    except OSError:
        return 0
    return size + 1 if size else 0


def _embedded(split: str) -> Iterator[int]:
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


def missing(name: str, path: Path, root: Path) -> str:
    """What to say of a name that is no file, no folder and no hub id from `root`, the project's folder."""
    if Path(name).exists():
        there = os.path.relpath(name, root)
        return t("paths are relative to the project folder; from there it is {there}", there=there)
    if difflib.get_close_matches(name, [EMBEDDED], cutoff=0.75):
        return t("no such file or folder; did you mean {near}?", near=EMBEDDED)
    if name.startswith("~"):
        return t("~ is not expanded in a plan; write the full path")
    if path.parent.is_dir():
        files = [p.name for p in path.parent.iterdir() if p.suffix in SUFFIXES or p.is_dir()]
        if near := difflib.get_close_matches(path.name, files, n=1):
            return t("no such file or folder; did you mean {near}?", near=Path(name).with_name(near[0]))
    return t("no such file or folder: {path}", path=path)
