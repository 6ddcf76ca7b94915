"""Lock files that killed builds of torch extensions left behind; every later build waits for them forever."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainwiz.probe.cache import cache_home

JUST_NOW = 2.0
"""Seconds; the process that made a younger lock may not be listed yet."""

_SHARED = ("nfs", "lustre", "ceph", "gpfs", "beegfs", "cifs", "smb", "fuse", "9p", "afs", "gfs2", "ocfs2", "glusterfs")
"""File systems that other machines may also write to (proc(5), mountinfo); FUSE may be one of them."""

_OWN = "overlay"
"""The file system that a container has for itself."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the PID namespace that sees all processes (PROC_PID_INIT_INO of Linux)."""


@dataclass(frozen=True, kw_only=True)
class StaleLock:
    """A lock that no process on this machine holds."""

    path: Path
    """The file."""
    inode: int
    """Identifies the file again before it is deleted."""
    shared: bool
    """Whether a process on another machine, in another container or of another user may hold it."""


def extensions_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where torch builds extensions (`_get_build_directory` in torch/utils/cpp_extension.py)."""
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or cache_home(environ) / "torch_extensions")


def stale_locks(environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> tuple[str, ...]:
    """Lock files that no process on this machine has open.

    torch's FileBaton keeps the file open until the build ends, so a running build is found in /proc, unless it runs on
    another machine that shares the folder.
    """
    suspects = [(lock, status) for lock, status in _locks(environ) if time.time() - status.st_mtime > JUST_NOW]
    held = _open_locks(root) if suspects else set()
    return tuple(str(lock) for lock, status in suspects if (status.st_dev, status.st_ino) not in held)


# docs/decisions/supervision.md: How a stale build lock is recognized
def stale_since(
    began: float, environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")
) -> tuple[StaleLock, ...]:
    """Locks made after `began` (seconds since the epoch) by processes that have ended.

    The open files are read after the locks were listed, so that a running build is found even if its lock is new.
    """
    found = [(lock, status) for lock, status in _locks(environ) if status.st_mtime >= began]
    held = _open_locks(root) if found else set()
    return tuple(
        StaleLock(path=lock, inode=status.st_ino, shared=_is_shared(lock, root) or _is_anothers(status))
        for lock, status in found
        if (status.st_dev, status.st_ino) not in held
    )


def _locks(environ: Mapping[str, str]) -> Iterator[tuple[Path, os.stat_result]]:
    folder = extensions_folder(environ)
    with contextlib.suppress(OSError):
        # <op>/lock under TORCH_EXTENSIONS_DIR, <python and cuda>/<op>/lock elsewhere.
        for lock in (*sorted(folder.glob("*/lock")), *sorted(folder.glob("*/*/lock"))):
            with contextlib.suppress(FileNotFoundError):
                yield lock, lock.stat()


def _is_shared(file: Path, root: Path) -> bool:
    """Whether its file system is shared; unknown counts as shared.

    In a container nobody sees the processes of others, which may share all but the container's own layer.
    """
    try:
        mounts = (root / "proc/self/mountinfo").read_text()
        wanted = os.stat(file).st_dev
    except OSError:
        return True
    for line in mounts.splitlines():
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
        before, _, after = line.partition(" - ")
        numbers = before.split()[2].split(":")
        if os.makedev(int(numbers[0]), int(numbers[1])) == wanted:
            kind = after.split()[0]
            return kind.startswith(_SHARED) or (kind != _OWN and _is_contained(root))
    return True


def _is_contained(root: Path) -> bool:
    """Whether this process has a PID namespace of its own, outside of which it sees no process."""
    try:
        return os.stat(root / "proc/self/ns/pid").st_ino != _FIRST_NAMESPACE
    except OSError:
        return False


def _is_anothers(status: os.stat_result) -> bool:
    """Whether its holder may be another user's process, whose open files are not seen."""
    return os.geteuid() not in (0, status.st_uid)


def _open_locks(root: Path) -> set[tuple[int, int]]:
    """The locks that are open, by device and inode: a container has other paths for the same files."""
    found = set()
    for descriptors in (root / "proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # another user's, or just ended
            for link in descriptors.iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(link).endswith("/lock"):
                        status = os.stat(link)
                        found.add((status.st_dev, status.st_ino))
    return found
