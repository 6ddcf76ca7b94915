"""This machine as it is now, except its Python: GPUs, cores, memory, disks, interfaces, limits, compilers."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trainwiz.machine import Cpu, Disk, Interface, Limits, Machine, Memory, Problem, Toolchain
from trainwiz.probe import cgroup, gpus
from trainwiz.probe import toolchain as compilers
from trainwiz.probe.limit import within

T = TypeVar("T")

DISK_SECONDS = 3.0


def host(
    folder: str,
    *,
    nvml: Any = None,
    root: Path = Path("/"),
    toolchain: Callable[[], Toolchain] | None = None,
    interfaces: bool = True,
) -> Machine:
    """Everything except the interpreter. `folder` is the project's, whose disk is looked at.

    `interfaces` take 10 ms, and matter only to several machines. `nvml` replaces the pynvml module and `root` the root
    folder in tests; `toolchain` may return a remembered answer instead of asking the compilers.
    """
    problems: list[Problem] = []

    def attempt(name: str, work: Callable[[], T], otherwise: T) -> T:
        try:
            return work()
        except Exception as error:
            problems.append(Problem(probe=name, detail=str(error) or type(error).__name__))
            return otherwise

    seen = gpus.gpus(nvml, root=root)
    return Machine(
        platform=sys.platform,
        hostname=os.uname().nodename,
        gpus=seen.gpus,
        hidden_gpus=seen.hidden,
        driver_version=seen.driver_version,
        cuda_driver_version=seen.cuda_driver_version,
        cpu=attempt("cpu", lambda: _cpu(root), Cpu()),
        memory=attempt("memory", lambda: _memory(root), Memory()),
        disk=attempt("disk", lambda: within(DISK_SECONDS, lambda: disk(folder)), None),
        shm=attempt("shm", lambda: disk(str(root / "dev/shm")) if (root / "dev/shm").is_dir() else None, None),
        interfaces=attempt("interfaces", _interfaces, ()) if interfaces else (),
        limits=attempt("limits", _limits, Limits()),
        toolchain=attempt("toolchain", toolchain or compilers.toolchain, Toolchain()),
        problems=(*seen.problems, *problems),
    )


def disk(path: str) -> Disk:
    """Space on the disk of `path`, which need not exist yet. Raises `OSError`."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    usage = shutil.disk_usage(place)
    return Disk(path=str(place), total_bytes=usage.total, free_bytes=usage.free)


def _cpu(root: Path) -> Cpu:
    text = (root / "proc/cpuinfo").read_text() if (root / "proc/cpuinfo").exists() else ""
    blocks = [dict(_pairs(block)) for block in text.split("\n\n") if block.strip()]
    cores = {(b.get("physical id"), b["core id"]) for b in blocks if "core id" in b}
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.cpu_quota(root)
    return Cpu(
        model=next((b["model name"] for b in blocks if "model name" in b), os.uname().machine),
        physical_cores=len(cores) or len(blocks) or os.cpu_count() or 1,
        # A quota of 1.5 cores suffices for one rank, not for two.
        usable_cores=max(1, min(affinity, int(quota) if quota else affinity)),
    )


def _pairs(block: str) -> list[tuple[str, str]]:
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in block.splitlines())]


def _memory(root: Path) -> Memory:
    file = root / "proc/meminfo"
    if file.exists():
        kibibytes = {name: value.split()[0] for name, value in _pairs(file.read_text()) if value}
        total, available = (int(kibibytes[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    else:
        import psutil

        total, available = psutil.virtual_memory().total, psutil.virtual_memory().available
    limit = cgroup.memory_limit(root)
    if limit is None or limit[0] >= total:
        return Memory(total_bytes=total, available_bytes=available)
    return Memory(total_bytes=limit[0], available_bytes=min(available, limit[1]), limited_by_cgroup=True)


def _interfaces() -> tuple[Interface, ...]:
    import socket

    import psutil

    found = []
    addresses = psutil.net_if_addrs()
    for name, state in psutil.net_if_stats().items():
        if not state.isup:
            continue
        numbers = [
            a.address.partition("%")[0]
            for a in addresses.get(name, ())
            if a.family in (socket.AF_INET, socket.AF_INET6)
        ]
        loopback = name == "lo" or any(n == "::1" or n.startswith("127.") for n in numbers)
        found.append(Interface(name=name, addresses=tuple(numbers), loopback=loopback, speed_mbps=state.speed or None))
    return tuple(found)


def _limits() -> Limits:
    def soft(which: str) -> int | None:
        with contextlib.suppress(AttributeError, ValueError, OSError):
            value: int = resource.getrlimit(getattr(resource, which))[0]
            return None if value == resource.RLIM_INFINITY else value
        return None

    return Limits(open_files=soft("RLIMIT_NOFILE"), memlock_bytes=soft("RLIMIT_MEMLOCK"))
