"""Data with labels, as the classification tasks read it, and how many samples it has."""

from __future__ import annotations

import difflib
import os
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainwiz.language import t
from trainwiz.probe import data, labels
from trainwiz.probe.cache import HubCache, is_hub_id
from trainwiz.project import DataFacts
from trainwiz.vocabulary import EMBEDDED

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
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


def texts(name: str, root: Path, cache: HubCache, *, split: str) -> DataFacts:
    """The facts about labelled texts: embedded, a .jsonl file or a hub id."""
    if name == EMBEDDED:
        return DataFacts(name=name, kind="embedded", samples=sum(_paragraphs(split)))
    path = data.located(root, name)
    try:
        if path.is_file():
            return DataFacts(name=name, kind="file", samples=_lines(path), detail=labels.of_texts(path, split))
        if path.is_dir():
            return DataFacts(
                name=name, kind="missing", detail=t("this is a folder; labelled texts must be in a .jsonl file")
            )
    except OSError as error:
        return DataFacts(name=name, kind="missing", detail=error.strerror or str(error))
    if is_hub_id(name, root):
        return DataFacts(name=name, kind="hub", cached=cache.holds("datasets", name))
    return DataFacts(name=name, kind="missing", detail=_missing(name, path, root))


def pictures(name: str, root: Path, *, split: str) -> DataFacts:
    """The facts about labelled pictures: embedded, a folder with one folder per class, or an .npz file."""
    if name == EMBEDDED:
        return DataFacts(name=name, kind="embedded", samples=_DIGITS[split])
    path = data.located(root, name)
    try:
        if path.is_dir():
            return _folder(name, path, split)
        if path.is_file():
            return _arrays(name, path, split)
    except OSError as error:
        return DataFacts(name=name, kind="missing", detail=error.strerror or str(error))
    return DataFacts(name=name, kind="missing", detail=_missing(name, path, root))


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


def _folder(name: str, path: Path, split: str) -> DataFacts:
    inside = {entry.name.lower(): entry for entry in os.scandir(path) if entry.is_dir()}
    parts = tuple(sorted(inside)) if inside.keys() & set(PARTS["train"]) and inside.keys() <= ALL_PARTS else ()
    found = DataFacts(name=name, kind="folder", parts=parts)
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
    return name.lower().endswith(PICTURES) and not name.startswith(".")


def _arrays(name: str, path: Path, split: str) -> DataFacts:
    """From the headers of the arrays: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html."""
    try:
        with zipfile.ZipFile(path) as arrays:
            heads = {key: arrays.open(f"{key}.npy").read(_HEADER_BYTES) for key in ("images", "labels")}
            detail = labels.of_array(arrays.open("labels.npy"), split)
        dtype, count = re.search(rb"'descr': '([^']+)'", heads["images"]), re.search(rb"\((\d+),", heads["labels"])
    except (zipfile.BadZipFile, KeyError):
        dtype = count = None
    if dtype is None or count is None:
        return DataFacts(name=name, kind="file", detail=t("not an .npz file with the arrays images and labels"))
    if dtype[1] != b"|u1":
        detail = t("its images have dtype {dtype}, not uint8", dtype=dtype[1].decode())
    return DataFacts(name=name, kind="file", samples=int(count[1]), detail=detail)


def _missing(name: str, path: Path, root: Path) -> str:
    if Path(name).exists():
        return data.missing(name, path, root)
    near = difflib.get_close_matches(name, [EMBEDDED], cutoff=0.75)
    if not near and path.parent.is_dir():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    if near:
        return t("no such file or folder; did you mean {near}?", near=near[0])
    return t("no such file or folder: {path}", path=path)
