"""How much memory the batches of an .arrow file take, by what its messages say of them.

A few kB can stand for gigabytes, and pyarrow decompresses a batch as a whole before anyone sees its size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
"""Kinds of messages."""


def of_batches(messages: Any) -> Iterator[tuple[int, int]]:
    """The batches of an Arrow stream, each with its rows and its bytes without compression, dictionaries included.

    `messages` is pyarrow's reader of them. Raises `ValueError` and `struct.error` where one cannot be read.
    """
    # https://github.com/apache/arrow/blob/main/format/Message.fbs
    dictionaries = 0
    for message in messages:
        content = memoryview(message.metadata)
        root = _table(content, 0)
        kind_at = _field(content, root, 1)
        kind = content[kind_at] if kind_at else 0
        header_at = _field(content, root, 2)
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or not header_at:
            continue
        batch = _table(content, header_at)
        if kind == _RECORD_BATCH:
            rows_at = _field(content, batch, 0)
            rows = _number(content, "<q", rows_at) if rows_at else 0
            yield rows, dictionaries + _bytes_of(content, batch, message.body)
        elif data_at := _field(content, batch, 1):
            dictionaries += _bytes_of(content, _table(content, data_at), message.body)


def _bytes_of(content: memoryview, batch: int, body: Any) -> int:
    """The bytes of the buffers of a batch; compressed ones begin with how many they are without compression."""
    buffers_at = _field(content, batch, 2)
    if not buffers_at:
        return 0
    start = buffers_at + _number(content, "<I", buffers_at)
    count = _number(content, "<I", start)
    whole = memoryview(body) if body is not None else memoryview(b"")
    found = 0
    for each in range(count):
        offset, length = struct.unpack_from("<qq", content, start + 4 + 16 * each)
        stored = max(0, length)
        if _field(content, batch, 3) and length >= 8 and 0 <= offset <= len(whole) - 8:
            stored = max(stored, _number(whole, "<q", offset))
        found += stored
    return found


def _table(content: memoryview, at: int) -> int:
    """Where the table begins that is named at a byte."""
    return at + _number(content, "<I", at)


def _field(content: memoryview, table: int, number: int) -> int:
    """Where a field of a table stands; 0 where it is not given."""
    fields = table - _number(content, "<i", table)
    if 4 + 2 * number >= _number(content, "<H", fields):
        return 0
    offset = _number(content, "<H", fields + 4 + 2 * number)
    return table + offset if offset else 0


def _number(content: memoryview, kind: str, at: int) -> int:
    if at < 0:  # which would count from the end
        raise ValueError("a message leads elsewhere")
    (found,) = struct.unpack_from(kind, content, at)
    return int(found)
