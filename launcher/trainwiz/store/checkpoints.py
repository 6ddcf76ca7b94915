"""Checkpoints as the generated script leaves them: complete folders with a manifest of their files' hashes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from trainwiz.outcome import Verified

MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20


def verify(checkpoint: Path, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> Verified | None:
    """Compare the files with the manifest, hashing for at most `seconds`. None where there is no manifest."""
    if not (checkpoint / MANIFEST).exists():
        return None
    until = clock() + seconds
    try:
        hashes = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["sha256"].items()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return Verified(files=1, read=1, damaged=(MANIFEST,))
    read, damaged = 0, []
    # The smallest first: where time is short, as many as possible.
    for name, digest in sorted(hashes, key=lambda item: _size(checkpoint / item[0])):
        try:
            found = _sha256(checkpoint / name, until, clock)
        except OSError:
            found = ""
        if found is None:
            break
        read += 1
        if found != digest:
            damaged.append(name)
    return Verified(files=len(hashes), read=read, damaged=tuple(damaged))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sha256(path: Path, until: float, clock: Callable[[], float]) -> str | None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if clock() > until:
                return None
            digest.update(chunk)
    return digest.hexdigest()
