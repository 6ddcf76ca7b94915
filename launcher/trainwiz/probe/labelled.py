"""Data with labels, as the tasks with labels read it, and how many samples it has."""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainwiz.language import t
from trainwiz.probe import labels
from trainwiz.probe.data import Kind, Reading
from trainwiz.project import DataFacts
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
    with path.open("rb") as content:
        while chunk := content.read(1 << 20):
            count, last = count + chunk.count(b"\n"), chunk
            if time.monotonic() - began > _SECONDS:
                return None
    return count + (not last.endswith(b"\n"))


def _wrong_number(path: Path) -> str:
    """Why the first row of a .jsonl file is no text with a number; empty if it is one."""
    with path.open("rb") as content:
        first = content.readline(1 << 20)
    if not first:
        return ""
    try:
        row = json.loads(first)
        row["text"], row["label"]
    except (ValueError, KeyError, TypeError):
        return t('{file}: line 1 is not a JSON object with a "text" and a "label"', file=path.name)
    if not isinstance(row["text"], str):
        return t('{file}: line 1: "text" is not a string', file=path.name)
    if type(row["label"]) not in (int, float):
        return t('{file}: line 1: "label" is not a number', file=path.name)
    return ""


def _folder(path: Path, reading: Reading) -> DataFacts:
    split = reading.split
    inside = {entry.name.lower(): entry for entry in os.scandir(path) if entry.is_dir()}
    parts = tuple(sorted(inside)) if inside.keys() & set(PARTS["train"]) and inside.keys() <= ALL_PARTS else ()
    found = DataFacts(name=path.name, kind="folder", parts=parts)
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
    return replace(found, samples=count, detail=detail)


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
    return DataFacts(name=path.name, kind="file", samples=int(count[1]), detail=detail)


def _texts(path: Path, reading: Reading) -> DataFacts:
    detail = labels.of_texts(path, reading.split)
    return DataFacts(name=path.name, kind="file", samples=_lines(path), detail=detail)


def _scored(path: Path, _: Reading) -> DataFacts:
    return DataFacts(name=path.name, kind="file", samples=_lines(path), detail=_wrong_number(path))


def _no_texts(path: Path, _: Reading) -> DataFacts:
    detail = t("this is a folder; labelled texts must be in a .jsonl file")
    return DataFacts(name=path.name, kind="missing", detail=detail)


TEXTS = Kind(
    embedded=lambda _, split: DataFacts(name=EMBEDDED, kind="embedded", samples=sum(_paragraphs(split))),
    folder=_no_texts,
    file=_texts,
)
"""Labelled texts: embedded, a .jsonl file or a hub id."""
SCORED_TEXTS = replace(TEXTS, file=_scored)
"""The same with a number for each text."""
PICTURES = Kind(
    embedded=lambda _, split: DataFacts(name=EMBEDDED, kind="embedded", samples=_DIGITS[split]),
    folder=_folder,
    file=_arrays,
    on_hub=False,
)
"""Labelled pictures: embedded, a folder with one folder per class, or an .npz file."""
