"""Reading the head and the tail of logs of any size, in bounded memory, with the right line numbers."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trainwiz import files
from trainwiz.diagnose import Line, log_text
from trainwiz.errors import UsageError
from trainwiz.message import say

HEAD_BYTES, TAIL_BYTES = 1 << 17, 1 << 19
"""How much of the beginning and the end of a log is read."""
_CHUNK = 1 << 20
_LOOKED_AT = 4096
_PIECES, _PIECE = 32, 1 << 14
"""How many pieces between head and tail are kept, and bytes of each."""
_FAILURES = (
    b"Traceback (most recent call last)",
    b"out of memory",
    b"Segmentation fault",
    b"oom-kill",
    b"Watchdog caught collective",
    b"NCCL WARN",
    b": Xid (",
)
"""Searched one by one, in a quarter of the time that one pattern takes."""
_BINARY_SHARE = 0.3
_WIDE_SHARE = 0.3
"""Of the bytes at even or at odd places that are zero in UTF-16, whose text may be half Chinese."""
_TEXT_CONTROLS = frozenset("\t\n\r\f\x08\x1b")


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The beginning and the end of a log."""

    head: bytes
    """All of a log that is short."""
    tail: bytes = b""
    """Empty where `head` is all of it."""
    tail_line: int = 1
    """The number of the first line of `tail`, from 1."""
    between: tuple[tuple[int, bytes], ...] = ()
    """Pieces between them that mention a failure, each with the number of its first line."""

    def lines(self) -> tuple[Line, ...]:
        """The lines of both, with their numbers in the whole log."""
        head = log_text.read(self.head.decode(errors="replace"))
        return (*head, *log_text.read(self.tail.decode(errors="replace"), first=self.tail_line))

    def pieces(self) -> tuple[Line, ...]:
        """The lines that mention a failure between head and tail: many lines follow it."""
        return tuple(
            line for first, raw in self.between for line in log_text.read(raw.decode(errors="replace"), first=first)
        )


def read(name: str | Path) -> Excerpt:
    """The excerpt of a log; `-` is standard input. Raises `UsageError` if it is not readable text."""
    try:
        if str(name) == "-":
            return _checked(_excerpt(sys.stdin.buffer), name)
        mode = os.stat(name).st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(say("{path} is a folder, not a log", path=name), say("pass a file or a run folder"))
        if not stat.S_ISREG(mode):
            raise UsageError(say("{path} is not a regular file", path=name), say("pipe it in: trainwiz diagnose -"))
        with files.opened(name) as stream:
            return _checked(_excerpt(stream), name)
    except OSError as error:
        raise UsageError(say("{file} cannot be read: {problem}", file=name, problem=error.strerror or error)) from None


def lines(*paths: Path) -> tuple[Line, ...]:
    """The lines of several logs, one after the other; files that cannot be read are skipped."""
    found: list[Line] = []
    for path in paths:
        try:
            with files.opened(path) as stream:
                found += _excerpt(stream).lines()
        except OSError:
            continue
    return tuple(found)


def _excerpt(stream: BinaryIO) -> Excerpt:
    stream = _narrow(stream)
    head = stream.read(HEAD_BYTES)
    # The head ends with a whole line, and the tail begins with one.
    rest = b""
    if (cut := head.rfind(b"\n") + 1) and len(head) == HEAD_BYTES:
        head, rest = head[:cut], head[cut:]
    line = head.count(b"\n") + 1
    tail = rest
    pieces: list[tuple[int, bytes]] = []
    while chunk := _chunk(stream):
        tail += chunk
        if (drop := len(tail) - TAIL_BYTES) > 0:
            drop = tail.find(b"\n", drop) + 1 or drop
            pieces += _failures(tail, drop, line, room=_PIECES - len(pieces))
            line += tail.count(b"\n", 0, drop)
            tail = tail[drop:]
    return Excerpt(head=head, tail=tail, tail_line=line, between=tuple(pieces))


def _narrow(stream: BinaryIO) -> BinaryIO:
    """The stream in UTF-8, if it is in the UTF-16 that PowerShell writes with `>`."""
    start = stream.peek(_LOOKED_AT)[:_LOOKED_AT] if isinstance(stream, io.BufferedReader) else b""
    half = len(start) // 2
    zeros = [start[offset::2].count(0) > _WIDE_SHARE * half for offset in (0, 1)]
    if half < 2 or zeros[0] == zeros[1]:
        return stream
    recoded = codecs.EncodedFile(stream, "utf-8", "utf-16-be" if zeros[0] else "utf-16-le", "replace")
    return io.BufferedReader(_Recoded(recoded))


class _Recoded(io.RawIOBase):
    """What a recoder reads, for a buffer in front of it."""

    def __init__(self, source: codecs.StreamRecoder) -> None:
        self._source, self._left = source, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or self._source.read(_CHUNK)
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _chunk(stream: BinaryIO) -> bytes:
    """What comes next, without the zeros of a hole, which has no lines."""
    with contextlib.suppress(OSError):  # a pipe has no holes
        stream.seek(files.data_from(stream, stream.tell()))
    return stream.read(_CHUNK)


def _failures(text: bytes, end: int, line: int, *, room: int) -> list[tuple[int, bytes]]:
    """Whole lines around mentions of a failure before `end`; the first failures cause the others."""
    found: list[tuple[int, bytes]] = []
    behind = 0
    for at in sorted(at for words in _FAILURES for at in _places(text, words, end)):
        if at < behind or len(found) >= room:
            continue
        start = text.rfind(b"\n", 0, max(behind, at - _PIECE // 4)) + 1
        behind = text.find(b"\n", min(len(text), start + _PIECE)) + 1 or len(text)
        found.append((line + text.count(b"\n", 0, start), text[start:behind]))
    return found


def _places(text: bytes, words: bytes, end: int) -> Iterator[int]:
    at = text.find(words, 0, end)
    while at >= 0:
        yield at
        at = text.find(words, at + _PIECE // 2, end)


def _checked(excerpt: Excerpt, name: str | Path) -> Excerpt:
    start = excerpt.head[:_LOOKED_AT]
    if not start.strip():
        raise UsageError(say("{path} is empty", path=name), say("pass the log of the rank that failed"))
    text = start.decode(errors="replace")
    strange = sum(c == "\ufffd" or (c < " " and c not in _TEXT_CONTROLS) for c in text)
    if strange > _BINARY_SHARE * len(text):
        raise UsageError(
            say(
                "{path} is not a text file: {n} of its first {total} characters are not text",
                path=name,
                n=strange,
                total=len(text),
            ),
            say("pass the log written by the training"),
        )
    return excerpt
