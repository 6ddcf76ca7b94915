"""Whether the process in a record still runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
"""A file this old is no longer touched: caches of network file systems hide a touch for a minute."""


class HeartbeatFile:
    """Touches a file while a run goes on, for those who see its folder from another machine. `close` removes it."""

    def __init__(self, file: Path) -> None:
        self._file, self._ended = file, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The run is over."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._file.unlink()

    def _beat(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self._file.touch()
                os.utime(self._file)
            if self._ended.wait(BEAT_SECONDS):
                return


# docs/decisions/launching.md: A live run is identified by its launcher's PID and start time
def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None if it does not run.

    Process ids are reused; a process id and a start time together are unique. Field 22 of
    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(fields[18])


def is_running(started: Mapping[str, Any], beat: Path | None = None) -> bool | None:
    """Whether the launcher that wrote `command.json` still runs; None where that cannot be known here.

    `beat` is the file that it touches; a launcher on another machine is known by that.
    """
    pid = started.get("pid")
    if not isinstance(pid, int):
        return False
    if started.get("hostname") != os.uname().nodename:
        return _beats(beat) if beat else None
    born = start_ticks(pid)
    if born is None:
        return False
    recorded = started.get("pid_birth")
    return recorded == born if isinstance(recorded, int) else _is_trainwiz(pid)


def belongs_to(pid: int, record: Path) -> bool:
    """Whether a process belongs to whoever wrote a record: others can name any process in theirs."""
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
        if owner == record.stat().st_uid:
            return True
    except OSError:
        return False
    # Where a file system keeps no owners, it must at least be a launcher of this user.
    return owner == os.geteuid() and _is_trainwiz(pid) and not _keeps_owners(record.parent)


def _keeps_owners(folder: Path) -> bool:
    """Whether files belong to their maker: NFS may squash root, and CIFS and FUSE give all files one owner."""
    try:
        with tempfile.TemporaryFile(dir=folder) as made:
            return os.fstat(made.fileno()).st_uid == os.geteuid()
    except OSError:
        return True


def _beats(beat: Path) -> bool | None:
    try:
        return time.time() - beat.stat().st_mtime < STALE_SECONDS
    except OSError:
        return None


def _is_trainwiz(pid: int) -> bool:
    try:
        return b"trainwiz" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
