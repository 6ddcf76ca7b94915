"""Labels that a classifier cannot learn: lists, fractions, or the same label everywhere."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from trainwiz.language import t
from trainwiz.probe import first_rows, sources
from trainwiz.probe.data import Reading
from trainwiz.probe.first_rows import Head

_TYPES = {b"<f8": "d", b"<f4": "f", b"<i8": "q", b"<i4": "i", b"<i2": "h", b"|i1": "b", b"|u1": "B"}
"""numpy's types of labels, as the module array names them."""
_OTHERS = {"1": "2", "2": "1", "a": "b", "b": "a"}
"""Endings of the names of columns that hold two texts of a pair."""
_MOST_BYTES = 16 << 20
"""Of the labels in an .npz file, which may be a few kB that stand for gigabytes; these are two million numbers."""


def of_rows(file: Path, head: Head, reading: Reading) -> str:
    """Why the rows of a file cannot be learned as classes, by its first ones; empty if no reason is found."""
    labels: list[Any] = []
    for number, row in head.rows:
        if problem := lacks_label(file, number, row, reading):
            return problem
        label = row[reading.label_column]
        if is_empty(label):
            return t("{file}: line {line}: the label is empty; each text needs one", file=file.name, line=number)
        if isinstance(label, list | dict):
            return _list(label, file.name, number)
        labels.append(label)
    if first_rows.kind(file) in (".csv", ".tsv"):
        if problem := headless(file, labels, reading):
            return problem
        labels = as_classes(labels)
    for (number, _), label in zip(head.rows, labels, strict=True):
        if isinstance(label, float) and not label.is_integer():
            return t(
                "{file}: line {line}: the label {label} is a fraction, and each different number would be a "
                "class: use a few grades, or learn the numbers with the task text_regression",
                file=file.name,
                line=number,
                label=label,
            )
    if problem := look_alike(labels):
        return f"{file.name}: {problem}"
    return _alike(labels) if head.whole and reading.split == "train" else ""


def is_empty(label: Any) -> bool:
    """Whether a label means none: an empty text, or NaN, which some programs write for it."""
    return bool(label != label) or (isinstance(label, str) and label.strip().lower() in ("", "nan"))


def headless(file: Path, labels: list[Any], reading: Reading) -> str:
    """Why the first line of a .csv file is a row and not a header; empty if no reason is found."""
    name, text = reading.label_column, reading.text_column
    if is_number(text) or not (is_number(name) or name in labels):  # pandas calls columns without names 0, 1, 2
        return ""
    return t(
        '{file}: line 1 seems to be data: the column of labels would be called "{name}" and that of texts '
        '"{text}"; add a line with the column names above it',
        file=file.name,
        name=name,
        text=text[:60],
    )


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    return bool(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text.strip()))


def lacks_label(file: Path, line: int, row: Mapping[str, Any], reading: Reading) -> str:
    """Why a row has no text or no label; empty if it has both."""
    if problem := sources.lacks(file, line, row, reading.text_column) or _half_of_a_pair(file, row, reading):
        return problem
    if row.get(reading.label_column) is not None:
        return ""
    return t(
        '{file}: line {line} has no label in the column "{column}"; it has {columns}',
        file=file.name,
        line=line,
        column=reading.label_column,
        columns=", ".join(map(str, row)) or "-",
    )


def _half_of_a_pair(file: Path, row: Mapping[str, Any], reading: Reading) -> str:
    """Why the text of a row is not all of it, as the generated texts.py finds it; empty if it is."""
    column, stem, last = reading.text_column, reading.text_column[:-1], reading.text_column[-1:]
    other = {"premise": "hypothesis", "hypothesis": "premise"}.get(column, stem + _OTHERS.get(last, last))
    if not stem or other == column or other not in row:
        return ""
    return t(
        '{file}: "{column}" and "{other}" are two texts that belong together, but only the first would be read; '
        "put both into one column",
        file=file.name,
        column=column,
        other=other,
    )


def lacks_labels(file: Path, line: int, row: Mapping[str, Any], reading: Reading) -> str:
    """Why a row has no text, or lacks one of several columns of labels; empty if it has all."""
    columns = (replace(reading, label_column=column) for column in _columns(row, reading))
    return next((problem for each in columns if (problem := lacks_label(file, line, row, each))), "")


def label_of(row: Mapping[str, Any], reading: Reading) -> Any:
    """The label of a row; of several columns the list of their values, as the generated sources.py reads it."""
    values = [row[column] for column in _columns(row, reading)]
    return values if len(values) > 1 else values[0]


def _columns(row: Mapping[str, Any], reading: Reading) -> list[str]:
    column = reading.label_column
    return [column] if column in row else [name.strip() for name in column.split(",")]


def no_tags(found: list[Any], whole: bool) -> str:
    """Why labels are not lists of classes; empty if they are. `whole`: they are all of the training data."""
    for label in found:
        if not isinstance(label, str | int | list) or (isinstance(label, str) and _is_no_list(label)):
            return t("a label is not a list of classes: {label}", label=label)
    return alike(found) if whole else ""


def _is_no_list(label: str) -> bool:
    """Whether a text looks like a list but is not one, as the generated multilabel.py decides."""
    if not (label.startswith("[") and label.endswith("]")) or re.search(r"[|;]", label):
        return False
    if re.fullmatch(r"\[\s*[01]([\s,;|]+[01])+\s*\]", label):
        return False
    if re.search(r"['\"]\s+['\"]", label):
        return True
    try:
        ast.literal_eval(label)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the latter two if it is nested too deeply
        return True
    return False


def alike(found: list[Any]) -> str:
    """What is wrong with labels that are all the same; empty if they differ."""
    if len(found) > 1 and len(set(map(str, found))) == 1:
        return t("all {count} labels are {label}; there is nothing to learn", count=len(found), label=found[0])
    return ""


def as_numbers(labels: list[Any]) -> list[Any]:
    """Labels of a .csv file as numbers, if all of them are; as the generated sources.py reads them."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return [[number(x) for x in label] if isinstance(label, list) else number(label) for label in labels]
    return labels


def as_classes(labels: list[Any]) -> list[Any]:
    """Labels of a .csv file as they are; as numbers, if all are and some are fractions. As the generated labels.py."""
    numbers = as_numbers(labels)
    flat = [x for each in numbers for x in (each if isinstance(each, list) else [each])]
    return numbers if any(isinstance(x, float) and not x.is_integer() for x in flat) else labels


def look_alike(labels: list[Any]) -> str:
    """Which two labels would be different classes but look the same; empty if none. As the generated labels.py."""
    first: dict[str, Any] = {}
    for label in labels:
        name = str(int(label) if isinstance(label, float) and label.is_integer() else label)
        for look in {name.strip(), *([str(int(label))] if isinstance(label, bool) else [])}:
            other = first.setdefault(look, (name, label))
            if name != other[0] or isinstance(label, str) != isinstance(other[1], str):
                return t(
                    "the labels {one} and {other} look the same; spell them the same way, or give them different names",
                    one=repr(other[1]),
                    other=repr(label),
                )
    return ""


def _list(label: Any, file: str, line: int) -> str:
    if isinstance(label, list) and label.count(1) == 1 and label.count(0) == len(label) - 1:
        return t(
            "{file}: line {line}: the label {label} is a list with one 1; write its index instead: {place}",
            file=file,
            line=line,
            label=label,
            place=label.index(1),
        )
    return t(
        "{file}: line {line}: the label {label} is not a single name or number, but each text has exactly one "
        "class here",
        file=file,
        line=line,
        label=json.dumps(label, ensure_ascii=False)[:60],
    )


def of_array(labels: IO[bytes], split: str) -> str:
    """Why the labels of an .npz file cannot be learned; empty if no reason is found."""
    content = labels.read(_MOST_BYTES + 1)
    is_whole = len(content) <= _MOST_BYTES
    length = int.from_bytes(content[8:10], "little")  # of the header, in version 1 of the format
    header, values = content[10 : 10 + length], array(_TYPES.get(_field(header=content, name=b"descr"), "B"))
    if re.search(rb"\(\d+, \d+\)", header):
        return t("its labels are a table with a row of numbers for each image; store labels.argmax(1) instead")
    if _field(header=content, name=b"descr") not in _TYPES:
        return ""
    stored = content[10 + length :]
    values.frombytes(stored[: len(stored) // values.itemsize * values.itemsize])
    if fractions := [value for value in values if value % 1]:
        return t(
            "{count} of the first {total} labels are fractions, such as {label}; store whole numbers from 0",
            count=len(fractions),
            total=len(values),
            label=fractions[0],
        )
    return _alike(list(values)) if is_whole and split == "train" else ""


def _field(*, header: bytes, name: bytes) -> bytes:
    found = re.search(rb"'" + name + rb"': '([^']+)'", header[:1000])
    return found[1] if found else b""


def _alike(labels: list[Any]) -> str:
    if len(labels) > 1 and len(set(map(str, labels))) == 1:
        return t("all {count} labels are {label}; a classifier needs two", count=len(labels), label=labels[0])
    return ""
