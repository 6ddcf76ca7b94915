"""Launchers such as torchrun, whose children are the ranks: which processes a signal for the ranks must reach."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainwiz.process.guardian import MARK

if TYPE_CHECKING:
    from psutil import Process

_POLL_SECONDS = 0.05
_RANK = "LOCAL_RANK"
"""What torchrun gives each of its ranks."""


def signal_children(agent: int, signum: int) -> None:
    """Send a signal to the children of a launcher that does not ignore it, or to the launcher if it has none."""
    for target in [child.pid for child in _children(agent)] or [agent]:
        _send(target, signum)


# docs/decisions/launching.md: torchrun ignores the signals that ask for the end
def signal_ranks(agent: int, signum: int) -> None:
    """Send a signal to the ranks of a launcher that ignores it, each as soon as it no longer ignores it.

    A launcher without ranks, such as one that waits for other machines, has nothing to save, and is killed.
    """
    ranks = [child.pid for child in _children(agent) if _may_be_rank(child)]
    if not ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(agent, signal.SIGKILL)
        return
    late = [pid for pid in ranks if not _sent(pid, signum)]
    if late:
        threading.Thread(target=_repeat, args=(late, signum), daemon=True).start()


def _repeat(late: list[int], signum: int) -> None:
    # Between its exec and its first lines, a rank still ignores what its launcher does.
    while late:
        time.sleep(_POLL_SECONDS)
        late = [pid for pid in late if not _sent(pid, signum)]


def _sent(pid: int, signum: int) -> bool:
    """Whether the process got the signal, or is gone."""
    if _ignores(pid, signum):
        return False
    _send(pid, signum)
    return True


def _ignores(pid: int, signum: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    return any(mask >> (signum - 1) & 1 for mask in masks)


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _children(pid: int) -> list[Process]:
    import psutil

    try:
        return psutil.Process(pid).children()
    except psutil.Error:
        return []


def _may_be_rank(process: Process) -> bool:
    """Also one whose environment cannot be read: setproctitle writes the title over it."""
    environ = _environ(process)
    return _RANK in environ or MARK not in environ


def _environ(process: Process) -> dict[str, str]:
    import psutil

    try:
        return process.environ()
    except psutil.Error:
        return {}
