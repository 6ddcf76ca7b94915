"""Dumps of PyTorch's flight recorder: one file for each rank, whose name ends in the rank."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d+)(?P<ending>\.(?:json|pkl|pickle))?$")
_LARGEST = 2**28
"""Bytes; a dump of 2,000 collectives has a few MB."""


def beside(path: Path) -> dict[int, bytes]:
    """The files of a folder that may be dumps, by rank; of a file, those named like it. Empty: there are none."""
    of = _NAME.fullmatch(path.name)
    if path.is_dir():
        files = [(file, match) for file in sorted(path.iterdir()) if (match := _NAME.fullmatch(file.name))]
    elif of is not None and _looks_like_one(path):
        named = ((file, _NAME.fullmatch(file.name)) for file in sorted(path.parent.iterdir()))
        files = [(file, match) for file, match in named if match and match["prefix"] == of["prefix"]]
    else:
        return {}
    return {int(match["rank"]): file.read_bytes() for file, match in files if _looks_like_one(file)}


def _looks_like_one(file: Path) -> bool:
    if not file.is_file() or not 0 < file.stat().st_size <= _LARGEST:
        return False
    with file.open("rb") as stream:
        return stream.read(1) in (b"\x80", b"{")
