"""A small forked process that outlives the launcher and kills its ranks, so nothing is left running.

Process groups do not hold what torchrun or a data loader starts in a session of its own, and a parent's death signal
reaches direct children only. So every process of a launch carries a mark in its environment, and whoever cleans up
looks for the mark. `MARK` is not a secret.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

MARK = "TRAINWIZ_LAUNCH"
SWEEP_SECONDS = 10.0
"""How long processes are killed that start while others are being killed."""
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


# docs/decisions/supervision.md: Three mechanisms end leftover processes
class Guardian:
    """Watches the process that made it. `close` when nothing is left to guard."""

    def __init__(self, mark: str) -> None:
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writing)
            _guard(reading, mark)
        os.close(reading)

    def close(self) -> None:
        """End the guardian without killing anything."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writing, b".")
        os.close(self._writing)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def new_mark() -> str:
    """A mark that no other launch has."""
    return os.urandom(16).hex()


def marked(mark: str) -> list[int]:
    """Processes of this machine that carry the mark (not the zombies among them)."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid():
                with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(name))
    return found


def kill_marked(mark: str, *, within: float = SWEEP_SECONDS) -> None:
    """Kill every process that carries the mark, and those that they start meanwhile."""
    until = time.monotonic() + within
    while (pids := marked(mark)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def tied_to_parent() -> Callable[[], None] | None:
    """A function for the child to call before exec: die when the parent does. None where the kernel cannot."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def _guard(reading: int, mark: str) -> None:
    # A fork of the launcher: it must not touch anything that it inherited, and exit only by os._exit.
    try:
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.closerange(3, reading)
        os.closerange(reading + 1, 4096)
        if os.read(reading, 1) == b"":
            kill_marked(mark)
    finally:
        os._exit(0)
