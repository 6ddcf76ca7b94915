"""Pictures with labels, as the tasks on pictures read them, and how many there are."""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.probe import first_rows, labels, sources, splits
from trainwiz.probe.data import Kind, Reading
from trainwiz.probe.first_rows import Head
from trainwiz.probe.labeled import is_table
from trainwiz.probe.splits import is_shown
from trainwiz.project import Amount, DataFacts
from trainwiz.vocabulary import EMBEDDED

_SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_NOT_READ = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dcm", ".dng", ".cr2", ".nef", ".arw")
"""Both as the generated pictures.py knows them."""
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Tables in a folder of pictures, as the generated pictures.py knows them."""
_DIGITS = {"train": 1438, "validation": 359}
"""scikit-learn's 1797 pictures, of which every fifth is used for evaluation."""
_SECONDS = 0.2
"""If counting takes longer, the number of samples stays unknown."""
_DIGITS_OF_A_SIZE = 5
_HEADER_BYTES = 1000
Wrong = Callable[[list[Any], bool], str]
"""Why labels are not those of a task; whether they are all of the training data."""


def _folder(path: Path, reading: Reading) -> DataFacts:
    split, (parts, evaluation, unclear) = reading.split, _parts(path)
    found = DataFacts(name=path.name, kind="folder", parts=tuple(parts.values()), evaluation_part=evaluation)
    if unclear:
        return replace(found, parts=(), detail=unclear)
    here = path / (evaluation if parts and split != "train" else parts.get("train", ""))
    if here == path and parts:
        folders = ", ".join(found.parts)
        return replace(
            found, detail=t("it contains {folders}, but no images to evaluate on, such as in val", folders=folders)
        )
    began, loose, not_read, counts = time.monotonic(), [], [], {}
    top = os.path.realpath(here)
    for entry in os.scandir(here):
        if _is_picture(entry.name):
            loose.append(entry.name)
        elif entry.is_dir() and is_shown(entry.name):
            counts[entry.name] = 0
            seen = {top}
            for at, below_it, names in os.walk(entry, followlinks=True):
                if os.path.realpath(at) in seen:
                    below_it.clear()
                    continue
                seen.add(os.path.realpath(at))
                below_it[:] = filter(is_shown, below_it)
                counts[entry.name] += sum(map(_is_picture, names))
                below = os.path.relpath(at, here)
                not_read += [f"{below}/{n}" for n in names if n.lower().endswith(_NOT_READ) and is_shown(n)]
                if time.monotonic() - began > _SECONDS:
                    return found
    count, classes = sum(counts.values()), [label for label, images in counts.items() if images]
    detail = _left_out(loose, not_read, count)
    if len(classes) == 1 and split == "train" and not detail:
        detail = t(
            "all {count} images have the same class, {label}; a classifier needs two", count=count, label=classes[0]
        )
    return replace(found, samples=count, detail=detail, amount=Amount(documents=count, different=count, tokens=0))


def _parts(path: Path) -> tuple[dict[str, str], str, str]:
    """The folders that split the pictures, by their words, the one for evaluation, and why that is not clear."""
    words = {entry.name: splits.word_of(entry.name) for entry in os.scandir(path) if entry.is_dir()}
    words = {name: words[name] for name in sorted(words) if is_shown(name)}
    others = [name for name, word in words.items() if not word and _holds_pictures(path / name)]
    training = [name for name, word in words.items() if word in splits.PARTS["train"]]
    held_out = {word: name for name, word in words.items() if word and name not in training}
    if not training or (not held_out and (others or len(training) > 1)):
        return {}, "", ""
    if others or len(training) > 1 or len(training) + len(held_out) < len(list(filter(None, words.values()))):
        unclear = t(
            "it is not clear which of its folders are for training and which for evaluation: {folders}; set the "
            "one to train on, such as {folder}",
            folders=", ".join(words),
            folder=f"{path.name}/{training[0]}",
        )
        return {}, "", unclear
    return {"train": training[0], **held_out}, held_out.get(splits.best_for_evaluation([*held_out]), ""), ""


def _holds_pictures(folder: Path) -> bool:
    began = time.monotonic()
    for _, folders, names in os.walk(folder):
        folders[:] = filter(is_shown, folders)
        if any(map(_is_picture, names)):
            return True
        if time.monotonic() - began > _SECONDS:
            break
    return False


def _left_out(loose: list[str], not_read: list[str], count: int) -> str:
    """Why pictures that are in no folder, or are not read, cannot stay beside those that are read."""
    if not loose and not not_read:
        return ""
    if not count and not not_read:
        return t("the images are in the folder itself, not in one folder per class")
    return t(
        "pictures that would be ignored: {count}, the first: {name}; put each into the folder of its class, as "
        ".png or .jpg",
        count=len(loose) + len(not_read),
        name=min(loose + not_read),
    )


def _is_picture(name: str) -> bool:
    return name.lower().endswith(_SUFFIXES) and is_shown(name)


def _arrays(path: Path, reading: Reading, *, classes: bool) -> DataFacts:
    """From the headers of the arrays: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html."""
    try:
        with zipfile.ZipFile(path) as arrays:
            heads = {key: arrays.open(f"{key}.npy").read(_HEADER_BYTES) for key in ("images", "labels")}
            detail = labels.of_array(arrays.open("labels.npy"), reading.split) if classes else ""
        dtype, count = re.search(rb"'descr': '([^']+)'", heads["images"]), re.search(rb"\((\d+),", heads["labels"])
    except (zipfile.BadZipFile, KeyError):
        dtype = count = None
    if dtype is None or count is None:
        return DataFacts(name=path.name, kind="file", detail=t("not an .npz file with the arrays images and labels"))
    if dtype[1] != b"|u1":
        detail = t("its images have dtype {dtype}, not uint8", dtype=dtype[1].decode())
    number = int(count[1])
    return DataFacts(
        name=path.name,
        kind="file",
        samples=number,
        detail=detail,
        picture_size=_edge(heads["images"]),
        amount=Amount(documents=number, different=number, tokens=0),
    )


def _edge(head: bytes) -> int | None:
    """Pixels along each edge, of arrays with height and width behind the number of pictures."""
    shape = re.search(rb"'shape': \(\d+, (\d+), (\d+)[,)]", head)
    return int(shape[1]) if shape and shape[1] == shape[2] and len(shape[1]) < _DIGITS_OF_A_SIZE else None


def _table(table: Path, reading: Reading, wrong: Wrong) -> DataFacts:
    return replace(_tables([table], reading, wrong), name=table.name)


def _tables(tables: Sequence[Path], reading: Reading, wrong: Wrong) -> DataFacts:
    found = sources.looked_at(tables, lambda file, head: _problem(file, head, reading, wrong), reading)
    return replace(found, amount=None)  # the texts of a table of pictures are names of files


def _problem(table: Path, head: Head, reading: Reading, wrong: Wrong) -> str:
    """Why the first rows of a table are not pictures with such labels; empty if no reason is found."""
    found: list[Any] = []
    for number, row in head.rows:
        name, is_inside = _inside(row.get(reading.text_column))
        held = {**row, reading.text_column: name} if reading.text_column in row else row
        if problem := labels.lacks_labels(table, number, held, reading):
            return problem
        if not is_inside and not (table.parent / name).is_file():
            return t(
                '{file}: line {line}: no file {name}: paths in column "{column}" are relative to the table\'s folder',
                file=table.name,
                line=number,
                name=name[:80] or "-",
                column=reading.text_column,
            )
        found.append(labels.label_of(row, reading))
    if is_table(table):
        found = labels.as_numbers(found) if wrong is _no_numbers else labels.as_classes(found)
    said = wrong(found, head.whole and reading.split == "train")
    return f"{table.name}: {said}" if said else ""


def _inside(value: Any) -> tuple[Any, bool]:
    """The name of a picture, and whether the table holds it, as tables of datasets do: {"bytes": …, "path": …}."""
    if not isinstance(value, Mapping) or not {"bytes", "path"} & value.keys():
        return value, False
    return value.get("path") or "", isinstance(value.get("bytes"), bytes)


def _no_classes(found: list[Any], whole: bool) -> str:
    for label in found:
        if isinstance(label, str) and not label.strip():
            return t("a label is empty; each image needs one")
        if isinstance(label, list):
            return t("a label is a list: {label}; to learn several labels per image, use image_multilabel", label=label)
        if isinstance(label, float) and not label.is_integer():
            return t("a label is a fraction: {label}; to learn numbers, use image_regression", label=label)
    if problem := labels.look_alike(found):
        return problem
    return labels.alike(found) if whole else ""


def _no_numbers(found: list[Any], whole: bool) -> str:
    for label in found:
        if isinstance(label, bool) or not isinstance(label, int | float):
            return t("a label is not a number: {label}; to learn classes, use image_classification", label=label)
    return labels.alike(found) if whole else ""


def _kind(wrong: Wrong, *, folders: bool) -> Kind:
    """Pictures whose labels `wrong` judges; only classes can be the names of folders."""

    def file(path: Path, reading: Reading) -> DataFacts:
        if first_rows.kind(path) in first_rows.TABLES:
            return _table(path, reading, wrong)
        return _fewer(_arrays(path, reading, classes=folders), reading)

    def folder(path: Path, reading: Reading) -> DataFacts:
        if table := next((path / name for name in METADATA if (path / name).is_file()), None):
            return replace(_table(table, reading, wrong), kind="folder")
        inside = None if splits.is_saved(path) else _folder(path, reading)
        if inside is None or (inside.samples == 0 and not inside.detail):
            stored = splits.of_folder(path, first_rows.STORED, reading.split)
            if stored.files:
                return sources.about(stored, _tables(stored.files, reading, wrong))
        found = _fewer(inside or DataFacts(name=path.name, kind="folder"), reading)
        if not folders and found.samples and not found.detail:
            return replace(found, detail=t("folders name classes, but this task needs a table, such as metadata.csv"))
        return found

    return Kind(
        embedded=lambda reading, split: _fewer(
            DataFacts(name=EMBEDDED, kind="embedded", samples=_DIGITS[split]), reading
        ),
        folder=folder,
        file=file,
        keeps_part=True,
    )


def _fewer(found: DataFacts, reading: Reading) -> DataFacts:
    return replace(found, samples=None) if reading.fewer and found.samples else found


PICTURES = _kind(_no_classes, folders=True)
"""Pictures with a class each: embedded, a folder with one folder per class, a table of files, or an .npz file."""
SCORED_PICTURES = _kind(_no_numbers, folders=False)
"""The same with a number for each picture."""
TAGGED_PICTURES = _kind(labels.no_tags, folders=False)
"""The same with any number of labels."""
