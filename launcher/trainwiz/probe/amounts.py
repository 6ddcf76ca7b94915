"""Estimates how much text files hold, from the first rows of each and the file's size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwiz.probe import first_rows
from trainwiz.probe.first_rows import Head
from trainwiz.project import Amount

_BYTES_PER_TOKEN = 4
"""Of UTF-8, with the tokenizers of current models: English words and Chinese characters alike."""


def amount(
    heads: Sequence[tuple[Path, Head]], every: Sequence[Path], column: str | None, *, as_bytes: bool
) -> Amount | None:
    """The estimate for all files, from those whose first rows were read; None if it is unknown how much follows them.

    `column` holds the text; None: all of a row counts. `as_bytes` says that each byte is a token.
    """
    documents = size = looked_at = 0.0
    different: set[int] = set()
    seen = 0
    lengths: list[int] = []
    per_token = 1 if as_bytes else _BYTES_PER_TOKEN
    for file, head in heads:
        scale = _scale(file, head)
        if scale is None:
            return None
        texts = [tuple(_texts(row.get(column) if column else row)) for _, row in head.rows]
        seen += len(texts)
        different |= set(map(hash, texts))
        documents += len(texts) if first_rows.kind(file) == ".txt" else scale * len(texts)
        sizes = [sum(len(text.encode("utf-8", "surrogatepass")) for text in row) for row in texts]
        size += scale * sum(sizes)
        if head.whole or first_rows.kind(file) != ".txt":  # the beginning of a document has not its length
            lengths += [math.ceil(each / per_token) for each in sizes]
        looked_at += file.stat().st_size
    if not seen or not looked_at:
        return None
    rest = sum(file.stat().st_size for file in every) / looked_at
    return Amount(
        documents=round(documents * rest),
        different=round(documents * rest * len(different) / seen),
        tokens=round(size * rest / per_token),
        lengths=tuple(lengths),
        exact=len(heads) == len(every) and all(head.whole for _, head in heads),
    )


def _scale(file: Path, head: Head) -> float | None:
    """How many times more all rows of a file are than its first ones."""
    if head.whole or not head.rows:
        return 1
    if head.total is not None:
        return head.total / len(head.rows)
    return file.stat().st_size / first_rows.HEAD_BYTES if first_rows.plain(file) else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
