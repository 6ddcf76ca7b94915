"""Labels of datasets from datasets: numbers that have names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Named(int):
    """A label of a ClassLabel column of datasets: its number, shown as its name."""

    names: Sequence[str]

    def __new__(cls, number: int, names: Sequence[str]) -> Named:
        label = super().__new__(cls, number)
        label.names = names
        return label

    def __str__(self) -> str:
        return self.names[self]


def with_names(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of datasets, with the names of its labels. Pictures stay as they are stored."""
    import datasets

    features = table.features or {}
    for column, feature in features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
    names = {column: found for column, feature in features.items() if (found := names_of(feature))}
    for row in table:
        yield {**row, **{column: named(row[column], found) for column, found in names.items()}}


def names_of(column: Any) -> Sequence[str]:
    """Return the names of the labels in a column; none if it has no such labels."""
    inner = column[0] if isinstance(column, list) else getattr(column, "feature", column)  # of a list
    return tuple(getattr(inner, "names", None) or ())


def named(value: Any, names: Sequence[str]) -> Any:
    """Return the numbers with their names. -1 stands for a label that is not known."""
    if isinstance(value, list):
        return [named(each, names) for each in value]
    return None if value is None or value < 0 else Named(value, names)
