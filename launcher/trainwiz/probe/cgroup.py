"""The limits that a container or a batch system sets on processor and memory: cgroups, version 1 and 2.

https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED_BYTES = 1 << 60
"""Version 1 shows "no limit" as the largest page-aligned number."""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The processor time that may be used, in cores; None if it is unlimited."""
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
    """The lowest memory limit and what is left of it, in bytes; None if there is no limit.

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


# docs/decisions/diagnosis.md: Out of memory is told from a kill by the cgroup's counter
def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this cgroup the kernel has killed for lack of memory; None if they are not counted.

    Only the innermost cgroup is read; outer ones also count the processes of others.
    """
    for folder in _folders(root, "memory"):
        text = _text(folder / "memory.events") or _text(folder / "memory.oom_control")
        counted = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        return _number(counted.get("oom_kill", ""))
    return None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup and its ancestors for a controller; each of them may set the limit.

    Inside a container the path is often the host's and does not exist; then only the mount's root is used.
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
