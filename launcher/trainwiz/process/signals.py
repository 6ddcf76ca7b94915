"""Signals to processes that others started."""

from __future__ import annotations

import contextlib
import os
import signal


def terminate(pid: int) -> None:
    """Ask a process to end; one that has just ended is not an error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
