"""Locks that killed builds of torch extensions left behind; every later build waits for them for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

JUST_NOW = 2.0
"""Seconds; a lock as young as this may belong to a process that is not listed yet."""


def extensions_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where torch builds extensions (`_get_build_directory` in torch/utils/cpp_extension.py)."""
    if environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(environ["TORCH_EXTENSIONS_DIR"])
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "torch_extensions"


def stale_locks(environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> tuple[str, ...]:
    """Lock files that no process here holds open.

    torch's FileBaton creates the file and keeps it open until the build ends, so a live builder is found in /proc.
    One on another machine that shares the folder is not.
    """
    folder = extensions_folder(environ)
    try:
        # <op>/lock under TORCH_EXTENSIONS_DIR, <python and cuda>/<op>/lock elsewhere.
        locks = [lock for pattern in ("*/lock", "*/*/lock") for lock in sorted(folder.glob(pattern))]
    except OSError:
        return ()
    suspects = [lock for lock in locks if _age(lock) > JUST_NOW]
    held = _open_files(root) if suspects else set()
    return tuple(str(lock) for lock in suspects if os.path.realpath(lock) not in held)


def _age(lock: Path) -> float:
    try:
        return time.time() - lock.stat().st_mtime
    except OSError:
        return 0.0


def _open_files(root: Path) -> set[str]:
    files: set[str] = set()
    for descriptors in (root / "proc").glob("[0-9]*/fd"):
        try:
            files.update(os.readlink(link) for link in descriptors.iterdir())
        except OSError:
            continue  # another user's, or just ended
    return files
