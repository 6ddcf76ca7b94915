"""The data set of a plan: where it is, and what is known of it. What a kind of sample has of its own is a `Kind`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trainwiz.language import t
from trainwiz.probe.cache import HubCache, is_hub_id
from trainwiz.project import DataFacts
from trainwiz.vocabulary import EMBEDDED

_USABLE = (".txt", ".jsonl", ".npz")


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
    split: str = "train"
    """train or validation."""
    packing: bool = True
    """Whether several documents share a sample."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is particular about one kind of sample. A name that is none of these is missing."""

    embedded: Callable[[Reading, str], DataFacts]
    """The facts about the embedded data set, by its split."""
    folder: Callable[[Path, Reading], DataFacts]
    file: Callable[[Path, Reading], DataFacts]
    on_hub: bool = True
    """Whether it may be a hub id."""


def facts(name: str, kind: Kind, reading: Reading, *, split: str) -> DataFacts:
    """The facts about one data set. `split` is train or validation."""
    path, reading = located(reading.root, name), replace(reading, split=split)
    try:
        if name == EMBEDDED:
            found = kind.embedded(reading, split)
        elif path.is_dir():
            found = kind.folder(path, reading)
        elif path.is_file():
            found = kind.file(path, reading)
        elif kind.on_hub and is_hub_id(name, reading.root):
            found = DataFacts(name=name, kind="hub", cached=reading.cache.holds("datasets", name))
        else:
            found = DataFacts(name=name, kind="missing", detail=missing(name, path, reading.root))
    except OSError as error:  # no permission, or a name that is too long
        found = DataFacts(name=name, kind="missing", detail=error.strerror or str(error))
    return replace(found, name=name)


def located(root: Path, name: str) -> Path:
    """The path of a name in the project's folder, which need not exist yet."""
    path = root / name
    return path if root.is_dir() else Path(os.path.normpath(path))  # the system cannot resolve ".." in a missing folder


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
        files = [p.name for p in path.parent.iterdir() if p.suffix in _USABLE or p.is_dir()]
        if near := difflib.get_close_matches(path.name, files, n=1):
            return t("no such file or folder; did you mean {near}?", near=Path(name).with_name(near[0]))
    return t("no such file or folder: {path}", path=path)
