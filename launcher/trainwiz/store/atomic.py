"""Atomic writes: files are written under another name in the same folder, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwiz.errors import TrainwizError
from trainwiz.message import Message, say


def write_all(root: Path, texts: Mapping[str, str]) -> None:
    """Write texts below `root` by relative path, in order: all of them, or none on an error.

    Raises `TrainwizError`, which names the files that could not be restored, if any.
    """
    made: list[Path] = []
    staged: list[_Staged] = []
    target = root
    try:
        for relative, text in texts.items():
            target = root / relative
            _refuse_special(target)
            made += _make_folders(target.parent)
            staged.append(_Staged(target=target, aside=_beside(target, "tmp"), before=_beside(target, "old")))
            _write_aside(staged[-1].aside, target, text.encode())
        for file in staged:
            target = file.target
            file.swap(last=file is staged[-1])
    except OSError as error:
        left = [file.target for file in reversed(staged) if not file.put_back()]
        problem, remedy = _explained(error, target.parent)
        raise TrainwizError(_told(problem, left), remedy) from None
    except BaseException:
        for file in reversed(staged):
            file.put_back()
        raise
    finally:
        _clean_up(staged, made)
    for folder in dict.fromkeys((root / relative).parent for relative in texts):
        _flush_folder(folder)


def write(path: Path, text: str) -> None:
    """Write one file atomically; a device or a pipe, such as /dev/null, is written to. Raises `TrainwizError`."""
    if not _is_special(path):
        return write_all(path.parent, {path.name: text})
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        problem, remedy = _explained(error, path)
        raise TrainwizError(problem, remedy) from None


def make_folder(folder: Path) -> None:
    """Make a folder with those above it. Raises `TrainwizError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem, remedy = _explained(error, folder.parent)
        raise TrainwizError(_told(problem, []), remedy) from None


def remove(path: Path) -> None:
    """Remove a file, if it exists. Raises `TrainwizError`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _, remedy = _explained(error, path.parent)
        problem = error.strerror or str(error)
        raise TrainwizError(say("cannot remove {path}: {problem}", path=path, problem=problem), remedy) from None


@dataclass(kw_only=True)
class _Staged:
    """A file that is written, but not yet renamed to its final name."""

    target: Path
    aside: Path
    """The new text."""
    before: Path
    """A second name of the file that is replaced."""
    existed: bool = False
    swapped: bool = False

    def swap(self, *, last: bool) -> None:
        self.existed = os.path.lexists(self.target)
        # Nothing can fail after the last file. Some file systems have no hard links.
        if self.existed and not last:
            with contextlib.suppress(OSError):
                os.link(self.target, self.before, follow_symlinks=False)
        os.replace(self.aside, self.target)
        self.swapped = True

    def put_back(self) -> bool:
        """Undo the swap, if there was one; False if that failed."""
        try:
            if self.swapped and self.existed:
                os.replace(self.before, self.target)
            elif self.swapped:
                self.target.unlink()
        except OSError:
            return False
        return True


def _is_special(path: Path) -> bool:
    """Whether a path is no file or folder, or leads to what a process has open, as /dev/stdout does."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    opened = path.is_symlink() and os.readlink(path).startswith("/proc/")
    return (
        not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or opened or os.path.realpath(path.parent).startswith("/proc/")
    )


def _refuse_special(target: Path) -> None:
    # Renaming a file to its name would replace the device itself, /dev/null for every program of the machine.
    if _is_special(target):
        raise TrainwizError(say("{path} is not a regular file; nothing was written", path=target))


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.{kind}")


def _clean_up(staged: Sequence[_Staged], made: Sequence[Path]) -> None:
    for file in staged:
        for path in (file.aside, file.before):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    for folder in reversed(made):
        # Folders that hold files are not removed.
        with contextlib.suppress(OSError):
            folder.rmdir()


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
    # Some file systems refuse to open a folder; the durability of the rename is then up to them.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _told(problem: Message, left: Sequence[Path]) -> Message:
    if not left:
        return say("{problem}; nothing was written", problem=problem)
    files = ", ".join(str(path) for path in reversed(left))
    return say(
        "{problem}; these files were already written and could not be restored: {files}", problem=problem, files=files
    )


def _explained(error: OSError, folder: Path) -> tuple[Message, Message | None]:
    """What is wrong, and what to do about it."""
    elsewhere = say("choose a folder you can write to")
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            full = say("the disk of {folder} is full", folder=folder)
            return full, say("free some space, or choose a folder on another disk")
        case errno.EROFS:
            return say("{folder} is on a read-only file system", folder=folder), elsewhere
        case errno.EACCES | errno.EPERM:
            return say("no permission to write to {folder}", folder=folder), elsewhere
        case errno.ENOTDIR | errno.EEXIST:
            return say("{folder}: a file exists where a folder is needed", folder=folder), None
    return say("cannot write to {folder}: {problem}", folder=folder, problem=error.strerror), None
