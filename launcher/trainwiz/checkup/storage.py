"""Processor, memory, disks, and limits of processes."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.checkup.line import Line
from trainwiz.checkup.surroundings import Cache, Surroundings
from trainwiz.finding import Level
from trainwiz.machine import Disk, Machine
from trainwiz.message import say
from trainwiz.quantities import size

MIB, GIB = 1 << 20, 1 << 30

ENOUGH_SHM = 512 * MIB
"""Docker gives 64 MiB. DeepSpeed warns below 512 MB; NCCL and DataLoader workers pass data through it."""

ENOUGH_FILES = 4096
"""Each DataLoader worker passes tensors as open files; 1024, a common limit, ends in `Too many open files`.

https://pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor
"""

ENOUGH_MEMLOCK = 64 * MIB
"""InfiniBand registers buffers as locked memory: https://docs.nvidia.com/deeplearning/nccl/ (troubleshooting)."""


def lines(machine: Machine, around: Surroundings | None) -> Iterator[Line]:
    """Cores, memory, /dev/shm, disk, caches and limits."""
    cpu = machine.cpu
    found = say(
        "{model}; cores: {cores}, usable: {usable}", model=cpu.model, cores=cpu.physical_cores, usable=cpu.usable_cores
    )
    yield Line(subject="cpu", title=say("processor"), found=found)
    yield _memory(machine)
    if machine.shm:
        yield _shm(machine.shm)
    if machine.disk:
        yield _disk(machine.disk)
    for cache in around.caches if around else ():
        yield _cache(cache)
    yield _files(machine)
    yield _memlock(machine)
    for problem in machine.problems:
        if problem.probe not in ("gpus", "nvml"):
            found = say("could not be checked: {problem}", problem=problem.detail)
            yield Line(subject=f"probe_{problem.probe}", title=problem.probe, found=found, level=Level.HINT)


def _memory(machine: Machine) -> Line:
    memory, title = machine.memory, say("memory")
    total, available = size(memory.total_bytes), size(memory.available_bytes)
    found = say("{available} available of {total}", available=available, total=total)
    if memory.limited_by_cgroup:
        found = say("{found} (the limit of this container or job)", found=found)
    if memory.total_bytes and memory.available_bytes < GIB:
        fix = say("find what uses it: ps aux --sort=-rss | head; in a container or job, request more memory")
        return Line(subject="memory", title=title, found=found, level=Level.ERROR, fix=fix)
    return Line(subject="memory", title=title, found=found)


def _shm(shm: Disk) -> Line:
    found = say("{free} free of {total}", free=size(shm.free_bytes), total=size(shm.total_bytes))
    if shm.free_bytes >= ENOUGH_SHM:
        return Line(subject="shm", title="/dev/shm", found=found)
    fix = say("docker run --shm-size=16g (or --ipc=host); outside a container: mount -o remount,size=16G /dev/shm")
    return Line(
        subject="shm",
        title="/dev/shm",
        found=say("{found}; NCCL and DataLoader workers need {wanted}", found=found, wanted=size(ENOUGH_SHM)),
        level=Level.WARNING,
        fix=fix,
    )


def _disk(disk: Disk) -> Line:
    found = say(
        "{free} free of {total} at {path}", free=size(disk.free_bytes), total=size(disk.total_bytes), path=disk.path
    )
    level = Level.ERROR if disk.free_bytes < GIB else Level.WARNING if disk.free_bytes < 20 * GIB else None
    fix = say("an AdamW checkpoint takes 12 bytes per parameter: free up space, or use another disk") if level else None
    return Line(subject="disk", title=say("disk"), found=found, level=level, fix=fix)


def _cache(cache: Cache) -> Line:
    title, subject = cache.variable, cache.variable.lower()
    if not cache.writable:
        found = say("{path} is not writable", path=cache.path)
        fix = say("export {variable}=/path/to/folder", variable=cache.variable)
        return Line(subject=subject, title=title, found=found, level=Level.WARNING, fix=fix)
    if cache.free_bytes is None:
        return Line(subject=subject, title=title, found=say("{path}, writable", path=cache.path))
    found = say("{path}, writable, {free} free", path=cache.path, free=size(cache.free_bytes))
    if cache.free_bytes >= GIB:
        return Line(subject=subject, title=title, found=found)
    fix = say("free up space, or run: export {variable}=/path/to/folder", variable=cache.variable)
    return Line(subject=subject, title=title, found=found, level=Level.WARNING, fix=fix)


def _files(machine: Machine) -> Line:
    limit, title = machine.limits.open_files, say("open files")
    if limit is None:
        return Line(subject="open_files", title=title, found=say("no limit"))
    found = say("at most {n}", n=limit)
    if limit >= ENOUGH_FILES:
        return Line(subject="open_files", title=title, found=found)
    found = say("at most {n}; DataLoader workers may need more", n=limit)
    return Line(subject="open_files", title=title, found=found, level=Level.HINT, fix=say("ulimit -n 65536"))


def _memlock(machine: Machine) -> Line:
    limit, title = machine.limits.memlock_bytes, say("locked memory")
    if limit is None:
        return Line(subject="memlock", title=title, found=say("no limit"))
    found = say("at most {limit}", limit=size(limit))
    infiniband = any(interface.name.startswith("ib") for interface in machine.interfaces)
    if limit >= ENOUGH_MEMLOCK or not (infiniband or machine.gpus):
        return Line(subject="memlock", title=title, found=found)
    found = say("at most {limit}; should be unlimited for pinned buffers and InfiniBand", limit=size(limit))
    level = Level.WARNING if infiniband else Level.HINT
    fix = say("ulimit -l unlimited (docker run --ulimit memlock=-1)")
    return Line(subject="memlock", title=title, found=found, level=level, fix=fix)
