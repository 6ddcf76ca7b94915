"""The peak memory of each rank, as it wrote it at its end: `logs/rank-N.peak` of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path

from trainwiz import files
from trainwiz.quantities import whole

_NAMES = ("host_bytes", "allocated_bytes", "reserved_bytes")


def read(folder: Path) -> dict[int, dict[str, int]]:
    """The bytes by rank; a rank that was killed, or whose file is damaged, is left out."""
    found = {}
    for file in folder.glob("rank-*.peak") if folder.is_dir() else ():
        rank = file.name.removeprefix("rank-").removesuffix(".peak")
        with contextlib.suppress(OSError):
            held = _counts(files.read_text(file, errors="replace"))
            if held and rank.isdecimal():
                found[int(rank)] = held
    return dict(sorted(found.items()))


def _counts(text: str) -> dict[str, int]:
    words = (line.split(" ") for line in text.splitlines())
    return {
        word[0]: count
        for word in words
        if len(word) == 2 and word[0] in _NAMES and (count := whole(word[1])) is not None
    }
