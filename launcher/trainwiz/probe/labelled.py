"""Data with labels, as the tasks with labels read it, and how many samples it has."""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trainwiz.files import opened
from trainwiz.language import t
from trainwiz.probe import first_rows, labels, sources
from trainwiz.probe.data import Kind, Reading
from trainwiz.probe.first_rows import Head
from trainwiz.project import Amount, DataFacts
from trainwiz.vocabulary import EMBEDDED

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
PARTS = {"train": ("train", "training"), "validation": ("val", "valid", "validation", "dev", "test", "testing")}
"""Names of folders that split the images, not classes, as the generated task.py knows them."""
ALL_PARTS = {name for names in PARTS.values() for name in names}
CHAPTERS = ("compound", "debugger", "specialnames", "string-methods", "types")
"""The chapters of Python's language reference that are the classes of the embedded texts."""
_DIGITS = {"train": 1438, "validation": 359}
"""scikit-learn's 1797 pictures, of which every fifth is used for evaluation."""
_SECONDS = 0.2
"""If counting takes longer, the number of samples stays unknown."""
_HEADER_BYTES = 1000


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


def _folder(path: Path, reading: Reading) -> DataFacts:
    split = reading.split
    inside = {entry.name.lower(): entry for entry in os.scandir(path) if entry.is_dir()}
    parts = tuple(sorted(inside)) if inside.keys() & set(PARTS["train"]) and inside.keys() <= ALL_PARTS else ()
    evaluation = next((part for part in PARTS["validation"] if part in parts), "")
    found = DataFacts(name=path.name, kind="folder", parts=parts, evaluation_part=evaluation)
    here = next((inside[part] for part in PARTS[split] if part in inside), None) if parts else path
    if here is None:
        detail = t("it holds {folders}, but no images to evaluate on, such as in val", folders=", ".join(parts))
        return replace(found, detail=detail)
    began, loose, counts = time.monotonic(), False, {}
    for entry in os.scandir(here):
        if entry.is_dir():
            counts[entry.name] = sum(_is_picture(file.name) for file in os.scandir(entry))
        loose = loose or _is_picture(entry.name)
        if time.monotonic() - began > _SECONDS:
            return found
    count, classes = sum(counts.values()), [label for label, images in counts.items() if images]
    detail = t("the images are in the folder itself, not in one folder per class") if loose and not count else ""
    if len(classes) == 1 and split == "train":
        detail = t(
            "all {count} images are of one class, {label}; a classifier needs two", count=count, label=classes[0]
        )
    return replace(found, samples=count, detail=detail, amount=Amount(documents=count, different=count, tokens=0))


def _is_picture(name: str) -> bool:
    return name.lower().endswith(_SUFFIXES) and not name.startswith(".")


def _arrays(path: Path, reading: Reading) -> DataFacts:
    """From the headers of the arrays: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html."""
    try:
        with zipfile.ZipFile(path) as arrays:
            heads = {key: arrays.open(f"{key}.npy").read(_HEADER_BYTES) for key in ("images", "labels")}
            detail = labels.of_array(arrays.open("labels.npy"), reading.split)
        dtype, count = re.search(rb"'descr': '([^']+)'", heads["images"]), re.search(rb"\((\d+),", heads["labels"])
    except (zipfile.BadZipFile, KeyError):
        dtype = count = None
    if dtype is None or count is None:
        return DataFacts(name=path.name, kind="file", detail=t("not an .npz file with the arrays images and labels"))
    if dtype[1] != b"|u1":
        detail = t("its images have dtype {dtype}, not uint8", dtype=dtype[1].decode())
    number = int(count[1])
    amount = Amount(documents=number, different=number, tokens=0)
    return DataFacts(name=path.name, kind="file", samples=number, detail=detail, amount=amount)


def _texts(files: Sequence[Path], reading: Reading) -> DataFacts:
    return _counted(files, _looked_at(files, labels.of_rows, reading), reading)


def _scored(files: Sequence[Path], reading: Reading) -> DataFacts:
    return _counted(files, _looked_at(files, _wrong_number, reading), reading)


def _looked_at(files: Sequence[Path], problem: Callable[[Path, Head, Reading], str], reading: Reading) -> DataFacts:
    return sources.looked_at(files, lambda file, head: problem(file, head, reading), reading, reading.text_column)


def _wrong_number(file: Path, head: Head, reading: Reading) -> str:
    """Why the first row of a file is no text with a number; empty if it is one."""
    for number, row in head.rows[:1]:
        if problem := labels.lacks_label(file, number, row, reading):
            return problem
        (label,) = labels.as_numbers([row[reading.label_column]]) if _is_table(file) else (row[reading.label_column],)
        if type(label) not in (int, float):
            return t(
                '{file}: line {line}: "{column}" is not a number',
                file=file.name,
                line=number,
                column=reading.label_column,
            )
    return ""


def _is_table(file: Path) -> bool:
    return first_rows.kind(file) in (".csv", ".tsv")


def _counted(files: Sequence[Path], found: DataFacts, reading: Reading) -> DataFacts:
    """The facts with the number of samples, where each line is one."""
    if found.samples is not None or reading.fewer or any(file.suffix != ".jsonl" for file in files):
        return found
    counts = [_lines(file) for file in files]
    return replace(found, samples=sum(n for n in counts if n is not None) if None not in counts else None)


def _every_file(path: Path) -> list[Path]:
    if sources.is_saved(path):
        return [path]
    return sorted(file for file in path.rglob("*") if first_rows.kind(file) in first_rows.TABLES and file.is_file())


def _kind(files: Callable[[Sequence[Path], Reading], DataFacts]) -> Kind:
    return Kind(
        embedded=lambda _, split: DataFacts(name=EMBEDDED, kind="embedded", samples=sum(_paragraphs(split))),
        folder=lambda path, reading: replace(files(_every_file(path), reading), kind="folder"),
        file=lambda path, reading: files([path], reading),
        files=files,
    )


TEXTS = _kind(_texts)
"""Labelled texts: embedded, files, folders of them, or a hub id."""
SCORED_TEXTS = _kind(_scored)
"""The same with a number for each text."""
PICTURES = Kind(
    embedded=lambda _, split: DataFacts(name=EMBEDDED, kind="embedded", samples=_DIGITS[split]),
    folder=_folder,
    file=_arrays,
    on_hub=False,
)
"""Labelled pictures: embedded, a folder with one folder per class, or an .npz file."""
