"""Signals to processes that others started."""

from __future__ import annotations

import contextlib
import os
import signal


# docs/decisions/supervision.md: Ctrl-Z stops the launcher, and the ranks go on
def keep_going() -> None:
    """Ignore Ctrl-Z: the launchers of other machines take one that is silent for lost."""
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


def terminate(pid: int) -> None:
    """Ask a process to end; one that has just ended is not an error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
