"""The dataset of a plan: where it is, and what is known about it. Each kind of sample has its `Kind`."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainwiz.language import t
from trainwiz.message import say
from trainwiz.probe import splits
from trainwiz.probe.cache import HubCache, is_hub_id
from trainwiz.probe.first_rows import COMPRESSED, SAME, TABLES
from trainwiz.project import Amount, DataFacts, is_part
from trainwiz.vocabulary import EMBEDDED

PREPARE = Path(__file__).parent / "inside" / "prepare_data.py"
"""A program that prepares the data of the project in the working directory."""
_SECONDS = 0.2
"""If listing a folder takes longer, its files are not compared with those of other sources."""
_USABLE = (*TABLES, *SAME, *COMPRESSED, ".txt", ".npz")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How task.py reads data."""

    root: Path
    """The project's folder, from which paths count."""
    cache: HubCache
    """Where the hub's client keeps datasets."""
    sequence_length: int
    """Tokens of a sample."""
    as_bytes: bool
    """Whether each byte is a token; otherwise a tokenizer makes fewer."""
    split: str = "train"
    """train or validation."""
    packing: bool = True
    """Whether several documents share a sample."""
    two_answers: bool = True
    """Whether a sample of preferences is two answers, or one."""
    answers_only: bool = True
    """Whether a conversation without an answer teaches nothing."""
    columns: str | None = None
    """What columns of conversations and preferences are read as; None: what their names say."""
    text_column: str = "text"
    """The column of the texts, or of the files of images."""
    label_column: str = "label"
    """The column of the labels."""
    fewer: bool = False
    """Whether some rows or documents are left out, so that the number of samples is not known."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is particular about one kind of sample. A name that is none of these is missing."""

    embedded: Callable[[Reading, str], DataFacts]
    """The facts about the embedded dataset, by its split."""
    folder: Callable[[Path, Reading], DataFacts]
    """The facts about the files of a folder."""
    file: Callable[[Path, Reading], DataFacts]
    """The facts about one file."""
    files: Callable[[Sequence[Path], Reading], DataFacts] | None = None
    """The facts about the files of a pattern. None: there can be one source only, and no pattern."""
    keeps_part: bool = False
    """Whether a part of its training data can be kept for evaluation although there are no patterns."""


def facts(name: str, kind: Kind, reading: Reading, *, split: str) -> DataFacts:
    """The facts about the sources of one dataset. `split` is train or validation."""
    reading = replace(reading, split=split)
    sources = listed(name, reading.root)
    if len(sources) == 1 or kind.files is None:
        return replace(_facts(name, kind, reading), name=name)
    found = [_facts(source, kind, reading) for source in sources]
    if twice := _repeated([file for source in sources for file in _files(source, reading)]):
        detail = t("{file} is listed twice among the sources", file=os.path.relpath(twice, reading.root))
        return DataFacts(name=name, kind="file", detail=detail, remedy=say("write it only once"))
    return replace(_together(sources, found), name=name)


def shared(train: str, held_out: str, kind: Kind, reading: Reading) -> str:
    """A file that both the training and the evaluation data hold; empty: none is known."""
    if kind.files is None or EMBEDDED in (train, held_out) or is_part(held_out):
        return ""
    of_training = {
        file for source in listed(train, reading.root) for file in _files(source, replace(reading, split="train"))
    }
    of_evaluation = (
        file
        for source in listed(held_out, reading.root)
        for file in _files(source, replace(reading, split="validation"))
    )
    return next((os.path.relpath(file, reading.root) for file in of_evaluation if file in of_training), "")


def _files(source: str, reading: Reading) -> list[str]:
    """The files of a source, as far as they are here and quickly listed."""
    path = located(reading.root, source)
    try:
        if path.is_dir():
            suffixes = (*TABLES, ".txt")
            found = splits.of_folder(path, suffixes, reading.split, seconds=_SECONDS).files
            return [os.path.abspath(file) for file in found if file.is_file()]
        if path.is_file():
            return [os.path.abspath(path)]
        named = glob.glob(source, root_dir=reading.root, recursive=True) if glob.has_magic(source) else []
        return [os.path.abspath(reading.root / file) for file in named if (reading.root / file).is_file()]
    except OSError:
        return []


def _repeated(files: list[str]) -> str:
    return next((file for file, times in Counter(files).items() if times > 1), "")


def listed(name: str, root: Path) -> list[str]:
    """The sources of a setting, as the generated sources.py reads it: one that exists is one source."""
    if _exists(root / name):
        return [name]
    return [source for source in map(str.strip, re.split(r",(?![^\[]*\])", name)) if source]


def _facts(name: str, kind: Kind, reading: Reading) -> DataFacts:
    path = located(reading.root, name)
    try:
        if name == EMBEDDED:
            return kind.embedded(reading, reading.split)
        if is_part(name) and reading.split == "validation" and (kind.files or kind.keeps_part):
            return DataFacts(name=name, kind="part")
        if path.is_dir():
            return kind.folder(path, reading)
        if path.is_file():
            return kind.file(path, reading)
        if kind.files and glob.has_magic(name.partition(":")[0]):
            files = [reading.root / file for file in sorted(glob.glob(name, root_dir=reading.root, recursive=True))]
            if files := [file for file in files if file.is_file()]:
                return replace(kind.files(files, reading), kind="folder")
            return DataFacts(name=name, kind="missing", detail=t("no file matches this pattern"))
        if is_hub_id(name.partition(":")[0], reading.root):
            cached = reading.cache.holds("datasets", name.partition(":")[0])
            return DataFacts(name=name, kind="hub", cached=cached, packages=("datasets",))
        return DataFacts(name=name, kind="missing", detail=missing(name, path, reading.root))
    except OSError as error:  # no permission, or a name that is too long
        return DataFacts(name=name, kind="missing", detail=error.strerror or str(error))


def _together(sources: Sequence[str], found: Sequence[DataFacts]) -> DataFacts:
    """The facts about several sources: the first problem, and the sum of what is known."""
    if EMBEDDED in sources:
        detail = t("embedded data cannot be combined with other sources")
        return DataFacts(name=EMBEDDED, kind="missing", detail=detail)
    kinds = {each.kind for each in found}
    worst = next(kind for kind in ("missing", "hub", "folder", "file") if kind in kinds)
    bad = next(((name, each) for name, each in zip(sources, found, strict=True) if each.detail), None)
    most = [each.samples_at_most for each in found]
    known = [each.samples for each in found]
    return DataFacts(
        name=sources[0],
        kind=worst,
        detail=f"{bad[0]}: {bad[1].detail}" if bad else "",
        samples=sum(each for each in known if each is not None) if None not in known else None,
        samples_at_most=sum(each for each in most if each is not None) if None not in most else None,
        cached=None if worst != "hub" else all(each.cached is not False for each in found if each.kind == "hub"),
        first=found[0].first,
        packages=tuple(sorted({package for each in found for package in each.packages})),
        amount=_sum([each.amount for each in found]),
    )


def _sum(amounts: Sequence[Amount | None]) -> Amount | None:
    known = [each for each in amounts if each]
    if len(known) < len(amounts):
        return None
    return Amount(
        documents=sum(each.documents for each in known),
        different=sum(each.different for each in known),
        tokens=sum(each.tokens for each in known),
        lengths=tuple(length for each in known for length in each.lengths),
        exact=all(each.exact for each in known),
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def located(root: Path, name: str) -> Path:
    """The path of a name in the project's folder, which need not exist yet."""
    path = root / name
    return path if root.is_dir() else Path(os.path.normpath(path))  # the system cannot resolve ".." in a missing folder


def missing(name: str, path: Path, root: Path) -> str:
    """The message about a name that is not a file, folder or hub id, seen from `root`, the project's folder."""
    if Path(name).exists():
        there = os.path.relpath(name, root)
        return t("paths are relative to the project folder; from there it is {there}", there=there)
    if difflib.get_close_matches(name, [EMBEDDED], cutoff=0.75):
        return t("no such file or folder; did you mean {near}?", near=EMBEDDED)
    if name.startswith("~"):
        return t("~ is not expanded in a plan; write the full path")
    if not root.is_dir():
        path = Path(name)  # what is typed before the project exists is seen from the current folder
    if path.parent.is_dir():
        files = [p.name for p in path.parent.iterdir() if p.suffix in _USABLE or p.is_dir()]
        if near := difflib.get_close_matches(path.name, files, n=1):
            return t("no such file or folder; did you mean {near}?", near=Path(name).with_name(near[0]))
    if path == Path(name):  # which the sentence around this one names already
        return t("no such file or folder")
    return t("no such file or folder: {path}", path=path)
