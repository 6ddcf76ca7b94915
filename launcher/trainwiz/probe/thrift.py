"""Values of Thrift's compact protocol, in which a .parquet file says what it holds.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MOST_DEPTH = 12
"""How deeply values may lie in each other."""
_BOOLEANS, _BYTE, _NUMBERS, _DOUBLE, _TEXT, _LISTS, _MAP, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12
"""The types of values, by their numbers."""


class Damaged(ValueError):
    """What no writer would have written."""


class Reader:
    """Reads values one after the other. Raises `IndexError` where the bytes end too early, and `Damaged`."""

    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def struct(self, depth: int = _MOST_DEPTH) -> dict[int, Any]:
        """The fields of a structure, by their numbers; texts are passed over."""
        return {field: self.value(kind, depth) for field, kind in self.fields()}

    def fields(self) -> Iterator[tuple[int, int]]:
        """The fields of a structure with their types; the value of each is to be read before the next."""
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            yield field, head & 15

    def items(self) -> tuple[int, int]:
        """How many values a list has, and their type."""
        head = self._byte()
        return (self._unsigned() if head >> 4 == 15 else head >> 4), head & 15

    def value(self, kind: int, depth: int = _MOST_DEPTH) -> Any:
        """The value of this type."""
        if not depth:
            raise Damaged
        if kind in _BOOLEANS:
            return kind == 1
        if kind == _BYTE:
            return self._byte()
        if kind in _NUMBERS:
            return self._signed()
        if kind in (_DOUBLE, _TEXT):
            return self._pass_over(8 if kind == _DOUBLE else self._unsigned())
        if kind in _LISTS:
            count, of = self.items()
            return [self._item(of, depth) for _ in range(count)]
        if kind == _STRUCT:
            return self.struct(depth - 1)
        if kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            return [(self._item(kinds >> 4, depth), self._item(kinds & 15, depth)) for _ in range(count)]
        raise Damaged

    def _item(self, kind: int, depth: int) -> Any:
        return self._byte() if kind in _BOOLEANS else self.value(kind, depth - 1)

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _pass_over(self, length: int) -> None:
        self.at += length
        if self.at > len(self._content):
            raise IndexError

    def _unsigned(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    def _signed(self) -> int:
        found = self._unsigned()
        return (found >> 1) ^ -(found & 1)
