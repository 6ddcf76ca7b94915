"""Rows of .jsonl and .json files: lines, the items of a list, or lists of messages."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # of a character that JSON writes in two parts


class RepeatedKey(ValueError):
    """A JSON object that gives this key twice."""


def with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises `RepeatedKey`: Python's json would keep the last value, and lose the others."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKey(next(name for name in names if names.count(name) > 1))
    return made


def json_lines(path: Path, content: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the lines of a file, to be parsed where they are used."""
    for number, line in enumerate(content, start=1):
        if line.strip():
            yield f"{path}:{number}", line


def json_rows(path: Path, content: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list, or the lines if the file is not a list. A list of messages is a row of its own."""
    head = content.read(1 << 12)
    content = io.BufferedReader(Joined(head, content), 1 << 20)
    if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from json_lines(path, content)
        return
    try:
        items = json.loads(whole := content.read(), object_pairs_hook=with_each_key_once)
    except RepeatedKey as error:
        place = place_in(whole.decode("utf-8-sig"))
        raise SystemExit(f'{path}:{place}: the key "{error}" is given twice; only one value would be read') from None
    except ValueError as error:
        if str(error).startswith("Extra data: line 2 "):  # a list in each line
            for place, line in json_lines(path, io.BytesIO(whole)):
                yield place, of_messages(parsed(line))
            return
        raise SystemExit(f"{path}: not a list of JSON objects, or one per line: {error}") from None
    rows = map(of_messages, items)
    rows = (json.dumps(row).encode() for row in rows) if HALF.search(whole) else rows  # checked where they are parsed
    yield from ((f"{path}: item {number}", row) for number, row in enumerate(rows, start=1))


def place_in(text: str) -> str:
    """Return the line and the number of the first item of a list that gives a key twice."""
    decoder, at = json.JSONDecoder(object_pairs_hook=with_each_key_once), text.index("[") + 1
    for number in itertools.count(1):
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        try:
            _, at = decoder.raw_decode(text, at)
        except RepeatedKey:
            return f"{text.count(chr(10), 0, at) + 1}: item {number}"
    raise AssertionError


def parsed(line: bytes | str) -> Any:
    """Return the value of a JSON text. Raises `ValueError` if it is none, or has a character that cannot be read."""
    value = json.loads(line, object_pairs_hook=with_each_key_once)
    if HALF.search(line if isinstance(line, bytes) else line.encode()):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a character is cut in half: {error.object[error.start]!a}") from None
    return value


def of_messages(row: Any) -> Any:
    """Return a list of messages as a row that holds them, and any other row as it is."""
    said = isinstance(row, list) and row and all(isinstance(x, dict) and {"role", "from"} & x.keys() for x in row)
    return {"messages": row} if said else row


class Joined(io.RawIOBase):
    """The first bytes of a stream and its rest as one stream: compressed files cannot always be rewound."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self.head, self.rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.head[: len(buffer)] or self.rest.read(len(buffer))
        self.head = self.head[len(part) :]
        buffer[: len(part)] = part
        return len(part)
