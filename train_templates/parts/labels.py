"""Labels as they are stored: as text in .csv files, as numbers with names in datasets of the package datasets."""

from __future__ import annotations

import contextlib

# feature: names
import itertools
import re
from collections.abc import Sequence

# end: names
from typing import Any

# feature: names
from class_names import Named

# end: names
from sources import Row, columns, value_of


def label_of(row: Row, label_column: str) -> Any:
    """Return the label of a row; of several columns (`cat,dog`) the list of their values. Exit if it has none."""
    found = [label_column] if label_column in columns(row) else map(str.strip, label_column.split(","))
    values = [value_of(row, column) for column in found]
    if any(value is None for value in values):
        raise SystemExit(f'{row[0]}: column "{label_column}" is empty: each sample needs a label')
    return values if len(values) > 1 else values[0]


def as_numbers(labels: list[Any]) -> list[Any]:
    """Return labels of a .csv file as numbers, if all of them are."""
    for number in (int, float):
        with contextlib.suppress(ValueError, TypeError):  # several columns make a list
            return [number(label) for label in labels]
    return labels


# feature: names
class Classes(list[str]):
    """The names of classes by number."""

    from_numbers = False  # they are names of numbers in the data


def as_classes(labels: list[Any]) -> list[Any]:
    """Return labels of a .csv file as they are, `007` and `7` too; as numbers where all are and some are fractions."""
    numbers = as_numbers(labels)
    return numbers if any(isinstance(number, float) and not number.is_integer() for number in numbers) else labels


def class_of(label: Any) -> str:
    """Return the name of a class."""
    return str(int(label) if isinstance(label, float) else label)


def in_order(labels: Sequence[Any]) -> Classes:
    """Return the classes of labels: those of a ClassLabel column as it has them, names sorted, numbers by size."""
    of_columns = {label.names for label in labels if isinstance(label, Named)}
    if len(of_columns) == 1 and all(isinstance(label, Named) for label in labels):
        classes = Classes(of_columns.pop())
        classes.from_numbers = True
        return classes
    names = sorted(set(map(class_of, labels)))
    numbers = all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", name) for name in names)
    return Classes(sorted(names, key=float) if numbers else names)


def refuse_labels(source: str, labels: Sequence[Any], split: str, what: str) -> None:
    """Exit if a label does not name one class, or if there is only one class. `what`: image or text."""
    different = len({repr(label) for label in labels})
    for number, label in enumerate(labels, start=1):
        found = f"{source}: these labels cannot be classes: {what} {number} of {len(labels)} has {label!r:.80}"
        if label != label or (isinstance(label, str) and label.strip().lower() in ("", "nan")):
            raise SystemExit(f"{found}, which is empty; each {what} needs a label")
        if isinstance(label, list) and label.count(1) == 1 and label.count(0) == len(label) - 1:
            raise SystemExit(f"{found}, a list with one 1; write its index instead: {label.index(1)}")
        if isinstance(label, list | dict):
            raise SystemExit(
                f"{found}; each {what} has one class here; several are learned by the task {what}_multilabel"
            )
        if isinstance(label, float) and not label.is_integer():
            raise SystemExit(
                f"{found}, a fraction; {different} labels differ, and each would be a class. Write a few grades, or "
                f"learn the numbers with the task {what}_regression"
            )
    refuse_alike(source, labels)
    if different == 1 and split == "train":
        raise SystemExit(f"{source}: these labels cannot be classes: all {len(labels)} are {str(labels[0])!r}")


def refuse_alike(source: str, labels: Sequence[Any]) -> None:
    """Exit if two labels look the same: they differ only in surrounding spaces, or in type (number, text, boolean)."""
    first: dict[str, Any] = {}
    for label in labels:
        for name in looks_of(label):
            other = first.setdefault(name, label)
            if class_of(label) != class_of(other) or isinstance(label, str) != isinstance(other, str):
                raise SystemExit(
                    f"{source}: these labels cannot be classes: {other!r} and {label!r} look alike; write them in one "
                    "way, or give them different names"
                )


def looks_of(label: Any) -> set[str]:
    """Return what a label may be mistaken for: True is also the number 1."""
    return {class_of(label).strip(), *([str(int(label))] if isinstance(label, bool) else [])}


def other_classes(before: Sequence[str] | None, classes: Sequence[str]) -> str:
    """Return why a checkpoint's outputs mean, or may mean, other classes than these; empty if they do not."""
    if before is not None:
        pairs = itertools.zip_longest(before, classes)
        if (first := next((pair for pair in pairs if pair[0] != pair[1]), None)) is None:
            return ""
        return f"they were {len(before)}, and are {len(classes)} now; the first change: {first}"
    from_numbers = getattr(classes, "from_numbers", False)  # 10 came before 2
    if list(classes) == sorted(classes) and not (from_numbers and len(classes) > 10):
        return ""
    return f"an older script saved it, which may have had these {len(classes)} in another order"


# end: names
