"""Files that appear whole or not at all: written aside in the same folder, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainwiz.errors import TrainwizError
from trainwiz.message import Message, say


def write_all(root: Path, texts: Mapping[str, str]) -> None:
    """Write texts below `root` by relative path, in order. Nothing is changed unless all of them reached the disk.

    Raises `TrainwizError` where the folder cannot be written to or the disk is full.
    """
    made: list[Path] = []
    staged: list[tuple[Path, Path]] = []
    target = root
    try:
        for relative, text in texts.items():
            target = root / relative
            made += _make_folders(target.parent)
            aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
            staged.append((aside, target))
            _write_aside(aside, target, text.encode())
        while staged:
            aside, target = staged[0]
            os.replace(aside, target)
            staged.pop(0)
    except OSError as error:
        raise TrainwizError(_explained(error, target.parent), _remedy(error)) from None
    finally:
        with contextlib.suppress(OSError):
            for aside, _ in staged:
                aside.unlink(missing_ok=True)
            for folder in reversed(made if staged else []):
                folder.rmdir()
    for folder in dict.fromkeys((root / relative).parent for relative in texts):
        _flush_folder(folder)


def write(path: Path, text: str) -> None:
    """Write one file atomically. Raises `TrainwizError`."""
    write_all(path.parent, {path.name: text})


def remove(path: Path) -> None:
    """Remove a file; one that is already gone is fine. Raises `TrainwizError`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise TrainwizError(_explained(error, path.parent), _remedy(error)) from None


def _make_folders(folder: Path) -> Iterator[Path]:
    missing = []
    while not folder.exists() and not folder.is_symlink():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        yield new


def _write_aside(aside: Path, target: Path, data: bytes) -> None:
    with open(aside, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        aside.chmod(target.stat().st_mode & 0o7777)


def _flush_folder(folder: Path) -> None:
    # Some file systems refuse to open a folder for this; the rename is then as durable as they make it.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _explained(error: OSError, folder: Path) -> Message:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return say("the disk that holds {folder} is full; nothing was written", folder=folder)
        case errno.EROFS:
            return say("{folder} is on a read-only file system; nothing was written", folder=folder)
        case errno.EACCES | errno.EPERM:
            return say("no permission to write in {folder}; nothing was written", folder=folder)
        case errno.ENOTDIR | errno.EEXIST:
            return say("{folder}: a file stands where a folder is needed; nothing was written", folder=folder)
    return say("{folder} cannot be written to: {problem}; nothing was written", folder=folder, problem=error.strerror)


def _remedy(error: OSError) -> Message | None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return say("free some space, or choose a folder on another disk")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return say("choose a folder that you may write to")
    return None
