"""Reading JSON-lines files while another process writes them: metrics.jsonl and memory.jsonl of a run."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainwiz import files
from trainwiz.record.shapes import counted

WHOLE_BYTES = 8 << 20
"""Up to this size a file is read in full; of a larger one, enough lines for the same curve."""
MOST_BYTES = 1 << 30
"""Up to this size each line is looked at; of a larger one, so many bytes, in equal parts of each stretch."""
_STRETCHES = 1000
"""Of a larger file: into how many pieces it is cut, each of which gives a few lines."""
_GLANCE_BYTES = 1 << 12
_NEWEST_BYTES = 1 << 20
"""The bytes at the end of a larger file that are read in full."""
_BUFFER_BYTES = 1 << 22
_LONGEST_LINE = 1 << 20
"""Longer lines are not records."""
_LOSS = re.compile(rb'"loss": ?(-?[0-9.eE+-]+|NaN|-?Infinity)')
_EVALUATION = b'"eval_'
_MOST_EVALUATIONS = 64
"""For each piece."""
_LONG_NUMBER = re.compile(rb"\d{19}")


class JsonLines:
    """A growing file of JSON objects, one per line. Other lines, and a last line without its end, are left out.

    Only a position and the last line are kept, so that hours of records cost no memory here.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self.rewritten = False
        """Whether the last call of `new` began anew, because a restart had cut the file back to its checkpoint."""
        self.earlier: list[dict[str, Any]] = []
        """Records from before `start`, which the first call of `new` returns, too."""
        self._path = path
        self._position = start
        self._last_line = b""

    def new(self) -> list[dict[str, Any]]:
        """The records since the last call; all of them if the file was rewritten, none while it does not exist."""
        self.rewritten = False
        earlier, self.earlier = self.earlier, []
        with contextlib.suppress(OSError), files.opened(self._path) as file:
            found = self._read(file)
            return found if self.rewritten else [*earlier, *found]
        return earlier

    def _read(self, file: BinaryIO) -> list[dict[str, Any]]:
        file.seek(self._position - len(self._last_line))
        # A rewritten file has another line there, or none, even if it is as long as before.
        if file.read(len(self._last_line)) != self._last_line:
            size = os.fstat(file.fileno()).st_size
            self.rewritten, self._last_line = True, b""
            self._position = _line_start(file, size - _NEWEST_BYTES) if size > WHOLE_BYTES else 0
            file.seek(self._position)
        found: list[dict[str, Any]] = []
        while line := file.readline(_LONGEST_LINE):
            if not line.endswith(b"\n"):
                if len(line) < _LONGEST_LINE:
                    break
                # Not even all of it may fit into memory: what follows is read from near the end of the file.
                start = max(file.tell(), os.fstat(file.fileno()).st_size - _NEWEST_BYTES)
                self._position, self._last_line = _line_start(file, start), b""
                file.seek(self._position)
                continue
            self._position += len(line)
            self._last_line = line
            if (record := _record(line)) is not None:
                found.append(record)
        return found


# docs/decisions/cli.md: Long files of metrics are thinned while they are read
def thinned(path: Path) -> list[dict[str, Any]]:
    """The records of a file; of a large one, of each stretch the first, those of the extremes of the loss, evaluations.

    Every byte is looked at, but few lines are parsed; of more than `MOST_BYTES`, only the beginning of each stretch is
    (`unread_bytes`).
    """
    with contextlib.suppress(OSError), files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_BYTES:
            return JsonLines(path).new()
        start = size - _NEWEST_BYTES
        blocks = _blocks(file, start, start // _STRETCHES) if size <= MOST_BYTES else _samples(file, start)
        told = (_record(line) for block in blocks for line in _telling(block))
        found = [record for record in told if record is not None]
        return [*found, *newest(path, size - file.tell())]
    return []


def unread_bytes(path: Path) -> int:
    """The bytes of a file that `thinned` skips."""
    with contextlib.suppress(OSError):
        return max(0, path.stat().st_size - MOST_BYTES)
    return 0


def sampled(path: Path) -> JsonLines | None:
    """A reader that begins with a few lines of each stretch of a large file; None for a file that is read whole.

    It takes a fraction of a second, however long the file is, and may miss extremes.
    """
    with contextlib.suppress(OSError), files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_BYTES:
            return None
        start = size - _NEWEST_BYTES
        first: list[dict[str, Any]] = []
        for i in range(_STRETCHES):
            file.seek(i * start // _STRETCHES)
            # A glance begins in the middle of a line, and ends in another one.
            lines = file.read(_GLANCE_BYTES).split(b"\n")[1 if i else 0 : -1]
            first += [record for line in lines[:1] if (record := _record(line)) is not None]
        reader = JsonLines(path, start=_line_start(file, start))
        reader.earlier = first
        return reader
    return None


def _line_start(file: BinaryIO, position: int) -> int:
    """Where the first line after this position begins; far behind it where the lines are too long to be records."""
    file.seek(position)
    return position + len(file.readline(_LONGEST_LINE))


def _blocks(file: BinaryIO, end: int, least: int) -> Iterator[bytes]:
    """The file's bytes up to about `end`, in blocks of whole lines of at least so many bytes."""
    file.seek(0)
    while file.tell() < end:
        yield file.read(min(max(least, 1 << 16), _BUFFER_BYTES)) + file.readline(1 << 20)


def _samples(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The beginning of each stretch of the file's bytes up to about `end`, in whole lines."""
    for i in range(_STRETCHES):
        if files.data_from(file, i * end // _STRETCHES) >= (i + 1) * end // _STRETCHES:
            continue
        file.seek(_line_start(file, i * end // _STRETCHES - 1) if i else 0)
        yield file.read(MOST_BYTES // _STRETCHES) + file.readline(_LONGEST_LINE)
    file.seek(_line_start(file, end))


def _telling(block: bytes) -> list[bytes]:
    """The lines of a block by which a curve keeps its shape, in their order."""
    at = {0}
    lowest = highest = gap = None
    low, high = math.inf, -math.inf
    for match in _LOSS.finditer(block):
        try:
            value = float(match[1])
        except ValueError:
            continue
        if not math.isfinite(value):
            gap = match if gap is None else gap
            continue
        if value < low:
            low, lowest = value, match
        if value > high:
            high, highest = value, match
    at |= {block.rfind(b"\n", 0, match.start()) + 1 for match in (lowest, highest, gap) if match is not None}
    position = -1
    for _ in range(_MOST_EVALUATIONS):
        if (position := block.find(_EVALUATION, position + 1)) < 0:
            break
        at.add(block.rfind(b"\n", 0, position) + 1)
        if (position := block.find(b"\n", position)) < 0:
            break
    return [block[start : block.find(b"\n", start) + 1 or None] for start in sorted(at)]


def newest(path: Path, size_bytes: int) -> list[dict[str, Any]]:
    """The records in the last bytes of a file; enough for a summary, however long the file is."""
    start = max(0, path.stat().st_size - size_bytes) if path.is_file() else 0
    return JsonLines(path, start=start).new()


def _record(line: bytes) -> dict[str, Any] | None:
    if len(line) >= _LONGEST_LINE:
        return None
    try:
        value = files.parsed_json(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    return dict(counted(value)) if _LONG_NUMBER.search(line) else value
