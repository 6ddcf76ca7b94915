"""Opening untrusted files: only regular ones, and no more of a file than fits into memory.

Opening a named pipe blocks until somebody writes to it, and a device may have no end.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from trainwiz.language import t

LARGEST = 32 << 20
"""Bytes of a record that is read whole; as text, one odd character makes four of each."""
_AT_ONCE = 1 << 16
"""Bytes that are asked for first: memory for all that a file may have costs more than reading a usual one."""
_MOST_VALUES = 2_000_000
"""In a JSON text: three bytes of it can become a hundred in memory."""


def opened(path: str | Path) -> BinaryIO:
    """The file, open for reading. Raises `OSError`, also for what is not a regular file, or no name of one."""
    try:
        mode = os.stat(path).st_mode
    except ValueError:  # NUL, or half a surrogate pair, which a JSON text can spell
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path)) from None
    _refuse_special(mode, path)
    # Between the two looks it may have been replaced: without O_NONBLOCK, a pipe would wait here.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        state = os.fstat(descriptor)
        _refuse_special(state.st_mode, path)
        if state.st_dev == _made_up():  # some wait for news, some have no end
            raise OSError(errno.EINVAL, t("not a regular file"), str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def resolved(path: str | Path) -> Path:
    """A path without links, as far as they lead: `Path.resolve` raises `RuntimeError` for those that form a circle."""
    return Path(os.path.realpath(path))


def read_bytes(path: str | Path, most: int = LARGEST) -> bytes:
    """All of a file. Raises `OSError`, also for a file of more than `most` bytes."""
    with opened(path) as file:
        content = file.read(min(most + 1, _AT_ONCE))
        if len(content) == _AT_ONCE:
            content += file.read(most + 1 - _AT_ONCE)
    if len(content) > most:
        raise OSError(errno.EFBIG, t("larger than {n} MiB", n=most >> 20), str(path))
    return content


def read_text(path: str | Path, *, errors: str = "strict", most: int = LARGEST) -> str:
    """All of a file as UTF-8. Raises `OSError`, and `UnicodeDecodeError` unless `errors` says what to do instead."""
    return read_bytes(path, most).decode("utf-8", errors).replace("\r\n", "\n")


def read_json(path: str | Path, *, most: int = LARGEST) -> Any:
    """The value in a JSON file. Raises `OSError` and `ValueError`, as `read_text` and `parsed_json` do."""
    return parsed_json(read_text(path, most=most))


def parsed_json(text: str | bytes) -> Any:
    """The value in a JSON text. Raises `ValueError`, also for what is nested too deeply or has too many values."""
    comma = "," if isinstance(text, str) else b","
    if text.count(comma) > _MOST_VALUES:  # type: ignore[arg-type]
        raise ValueError(t("more than {n} values", n=_MOST_VALUES))
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(t("nested too deeply")) from None


def data_from(file: BinaryIO, position: int) -> int:
    """Where a file's bytes go on at or after a position, past the hole that may be there; its size where none follow.

    A hole is read as zeros, takes no space, and can be of any size.
    """
    descriptor = file.fileno()
    # What `file` has read ahead begins where the descriptor stands now.
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(descriptor).st_size if error.errno == errno.ENXIO else position
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


@functools.cache
def _made_up() -> int:
    """The device whose files the kernel makes up; -1 where there is none."""
    try:
        return os.stat("/proc/self").st_dev
    except OSError:
        return -1


def _refuse_special(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, t("not a regular file"), str(path))
