"""Memory kills and disk space at the end of a run."""

from __future__ import annotations

import shutil

from trainwiz.probe import cgroup


def around(folder: str, oom_kills_before: int | None) -> dict[str, int]:
    """`oom_kills` since the count before, and free and total bytes of /dev/shm and of the folder's disk."""
    kills = cgroup.oom_kills()
    counted = {} if kills is None or oom_kills_before is None else {"oom_kills": kills - oom_kills_before}
    return {**counted, **_free("shm", "/dev/shm"), **_free("disk", folder)}


def _free(name: str, path: str) -> dict[str, int]:
    try:
        found = shutil.disk_usage(path)
    except OSError:
        return {}
    return {f"{name}_free_bytes": found.free, f"{name}_total_bytes": found.total}
