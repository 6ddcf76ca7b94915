"""Tokenized data, as the generated token_cache.py writes it: folders `tokens-…`, and unfinished ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.project import TokenFolder
from trainwiz.record.shapes import readable

_PARTIAL = ".partial"
_REMOVED = "removed-"


def every(cache: Path) -> list[TokenFolder]:
    """The folders of a cache, the one that was used last first; and remains of those whose removal was interrupted."""
    paths = [*cache.glob("tokens-*"), *cache.glob(f"{_REMOVED}tokens-*")]
    found = []
    for path in filter(Path.is_dir, paths):
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it
            found.append(_read(path))
    return sorted(found, key=lambda each: -each.used)


def remove(folder: TokenFolder) -> None:
    """Delete a folder; it is renamed first, so that no training takes a half-deleted one for complete.

    Raises `OSError`, and does nothing where somebody else has deleted it.
    """
    path = Path(folder.path)
    with contextlib.suppress(FileNotFoundError):
        if not path.name.startswith(_REMOVED):
            path = path.rename(path.with_name(f"{_REMOVED}{path.name}.{os.getpid()}"))
        path.unlink() if path.is_symlink() else shutil.rmtree(path)  # what a link leads to is not in this cache


def _read(path: Path) -> TokenFolder:
    complete = not path.name.endswith(_PARTIAL) and not path.name.startswith(_REMOVED)
    about: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        found = files.read_json(path / ("about.json" if complete else "progress.json"))
        about = readable(found) if isinstance(found, dict) else {}
    stats = [file.stat() for file in path.rglob("*") if file.is_file()]
    written = max((each.st_mtime for each in stats), default=path.stat().st_mtime)
    return TokenFolder(
        path=str(path),
        data=str(about.get("data", "")),
        tokens=about.get("tokens") or 0,
        size_bytes=sum(each.st_size for each in stats),
        used=path.stat().st_mtime if complete else written,
        complete=complete,
        busy=not complete and _locked(path),
    )


def _locked(partial: Path) -> bool:
    name = partial.name.removesuffix(_PARTIAL).partition(".")[0]
    try:
        with (partial.parent / "known" / f"{name}.lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
