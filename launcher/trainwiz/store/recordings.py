"""Dumps of PyTorch's flight recorder: one file for each rank, whose name ends in the rank."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from trainwiz import files

_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d+)(?P<ending>\.(?:json|pkl|pickle))?$")
_LARGEST = 1 << 25
"""Bytes; a dump of 2,000 collectives has a few MB."""


def beside(path: Path) -> Iterator[tuple[int, bytes]]:
    """The files of a folder that may be dumps, each with its rank; of a file, those named like it."""
    of = _NAME.fullmatch(path.name)
    if path.is_dir():
        found = [(file, match) for file in sorted(path.iterdir()) if (match := _NAME.fullmatch(file.name))]
    elif of is not None and _looks_like_one(path):
        named = ((file, _NAME.fullmatch(file.name)) for file in sorted(path.parent.iterdir()))
        found = [(file, match) for file, match in named if match and match["prefix"] == of["prefix"]]
    else:
        return
    # One at a time: together, they may not fit into memory.
    for file, match in found:
        if _looks_like_one(file):
            with contextlib.suppress(OSError):
                # A larger one cannot be read, which is not the same as none.
                can_be_read = file.stat().st_size <= _LARGEST
                yield int(match["rank"]), files.read_bytes(file, _LARGEST) if can_be_read else b""


def _looks_like_one(file: Path) -> bool:
    if not file.is_file() or not file.stat().st_size:
        return False
    try:
        with files.opened(file) as stream:
            return stream.read(1) in (b"\x80", b"{")
    except OSError:
        return False
