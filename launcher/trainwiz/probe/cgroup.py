"""The limits that a container or a batch system sets on processor and memory: cgroups, version 1 and 2.

https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest page-aligned number."""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processor cores' worth of time that may be used, None where nothing limits it."""
    quotas: list[float] = []
    for folder in _folders(root, "cpu"):
        words = _text(folder / "cpu.max").split()
        if len(words) != 2:
            words = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
        quota, period = (_number(word) for word in words)
        if quota and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> tuple[int, int] | None:
    """(limit, what is left of it) in bytes of the tightest memory limit, None where there is none.

    File cache that can be dropped at once counts as left, as in MemAvailable.
    """
    found: list[tuple[int, int]] = []
    for folder in _folders(root, "memory"):
        limit = _number(_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes"))
        if limit is None or limit >= _UNLIMITED_BYTES:
            continue
        used = _number(_text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")) or 0
        statistics = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
        cache = _number(statistics.get("total_inactive_file") or statistics.get("inactive_file", "0")) or 0
        found.append((limit, max(0, min(limit, limit - used + cache))))
    return min(found, default=None)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes of this cgroup that the kernel has killed since memory ran out, None where nobody counts them.

    Only the innermost cgroup: those around it count the kills of others, too.
    """
    for folder in _folders(root, "memory"):
        text = _text(folder / "memory.events") or _text(folder / "memory.oom_control")
        counted = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        return _number(counted.get("oom_kill", ""))
    return None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup and its ancestors for a controller; any of them may hold the limit.

    Inside a container the path is often that of the host and absent here: then only the mount's root is seen.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if number == "0" and not controllers:
            tops = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            tops = [mounts / controllers, mounts / controller]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for top in tops:
            for part in (inside, *inside.parents):
                if (top / part).is_dir():
                    yield top / part


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
