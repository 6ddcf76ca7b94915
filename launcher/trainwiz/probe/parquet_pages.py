"""How much memory the first rows of a .parquet file take at once, by the headers of its pages.

A few kB can stand for gigabytes, and pyarrow decompresses a page as a whole before anyone sees its size. The format:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from trainwiz.language import t
from trainwiz.probe.thrift import Damaged, Reader

_TAIL_BYTES = 8
"""At the end: how long the description is, and a mark."""
_HEADER_BYTES = 1 << 12
"""Bytes in which the header of a page usually ends."""
_MOST_HEADER_BYTES = 1 << 20
"""The most that one is read of: it may hold the smallest and the largest value."""
_GROUPS = 4
"""The field of the description with the groups of rows."""
_COLUMNS, _ROWS = 1, 3
"""Fields of a group."""
_METADATA, _KEY = 3, 8
"""Fields of a column: with what follows, and with how it is encrypted."""
_VALUES, _STORED, _DATA_AT, _DICTIONARY_AT = 5, 7, 9, 11
_PAGE_SIZE, _PAGE_STORED, _PAGE_OF_DATA, _PAGE_OF_DATA_V2 = 2, 3, 5, 8
"""Fields of the header of a page."""


def of_groups(file: BinaryIO, repeats: Sequence[bool], rows: int) -> Iterator[tuple[int, int]]:
    """The groups of a file, each with its rows, and the bytes that are in memory at once for so many of them.

    These are the largest page and the dictionary of each column. `repeats` says of each column whether a row may have
    several of its values. Raises `ValueError` where the file is damaged or encrypted.
    """
    try:
        for group in _groups(file):
            if any(_KEY in column for column in group[_COLUMNS]):
                raise ValueError(t("it is encrypted"))
            columns, taken = [column[_METADATA] for column in group[_COLUMNS]], 0
            for column, several in zip(columns, repeats, strict=True):
                taken += _at_once(file, column, column[_VALUES] if several else min(rows, column[_VALUES]))
            yield group[_ROWS], taken
    except (IndexError, KeyError, TypeError, AttributeError, Damaged):
        raise ValueError(t("it is damaged")) from None


def _groups(file: BinaryIO) -> Iterator[Mapping[int, Any]]:
    """The descriptions of the groups, each read when it is asked for: there may be thousands."""
    end = file.seek(-_TAIL_BYTES, 2)
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(0, end - length))
    reader = Reader(file.read(length))
    for field, kind in reader.fields():
        if field != _GROUPS:
            reader.value(kind)
            continue
        count, kind = reader.items()
        for _ in range(count):
            yield reader.value(kind)
        return


def _at_once(file: BinaryIO, column: Mapping[int, Any], wanted: int) -> int:
    """The bytes of the largest page and of the dictionary, of those that hold so many values."""
    dictionary = largest = 0
    starts = column[_DATA_AT], column.get(_DICTIONARY_AT, 0)
    at = min(each for each in starts if each > 0)  # 0 stands for none, too
    end = at + column[_STORED]
    while wanted > 0 and at < end:
        header, length = _header(file, at)
        size, stored = header[_PAGE_SIZE], header[_PAGE_STORED]
        if size < 0 or stored < 0:
            raise Damaged
        data = header.get(_PAGE_OF_DATA) or header.get(_PAGE_OF_DATA_V2)
        if data is None:
            dictionary = max(dictionary, size)
        else:
            largest, wanted = max(largest, size), wanted - data[1]
        at += length + stored
    return dictionary + largest


def _header(file: BinaryIO, at: int) -> tuple[Mapping[int, Any], int]:
    """The header of the page that begins at a byte, and how long it is."""
    for most in (_HEADER_BYTES, _MOST_HEADER_BYTES):
        file.seek(at)
        reader = Reader(file.read(most))
        try:
            return reader.struct(), reader.at
        except IndexError:
            continue
    raise Damaged
