"""Whether the process in a record still runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


# docs/decisions/launching.md: A live run is identified by its launcher's PID and start time
def birth(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None if it does not run.

    Process ids are reused; a process id and a start time together are unique. Field 22 of
    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(fields[18])


def runs(started: Mapping[str, Any]) -> bool | None:
    """Whether the launcher that wrote `command.json` still runs; None if it was started on another machine."""
    pid = started.get("pid")
    if not isinstance(pid, int):
        return False
    if started.get("hostname") != os.uname().nodename:
        return None
    born = birth(pid)
    if born is None:
        return False
    recorded = started.get("pid_birth")
    return recorded == born if isinstance(recorded, int) else _is_trainwiz(pid)


def _is_trainwiz(pid: int) -> bool:
    try:
        return b"trainwiz" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
