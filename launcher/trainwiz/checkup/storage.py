"""Processor, memory, disks, and limits of processes."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.checkup.line import Found, Line, line
from trainwiz.finding import Level
from trainwiz.machine import Cpu, Disk, Machine, Memory
from trainwiz.message import say
from trainwiz.quantities import size
from trainwiz.surroundings import Cache, Surroundings

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
    yield line("cpu", say("processor"), _cpu(machine.cpu))
    yield line("memory", say("memory"), _memory(machine.memory))
    if machine.shm:
        yield line("shm", "/dev/shm", _shm(machine.shm))
    if machine.disk:
        yield line("disk", say("disk"), _disk(machine.disk))
    for cache in around.caches if around else ():
        yield line(cache.variable.lower(), cache.variable, _cache(cache))
    yield line("open_files", say("open files"), _open_files(machine.limits.open_files))
    yield line("memlock", say("locked memory"), _memlock(machine))
    for problem in machine.problems:
        if problem.probe not in ("gpus", "nvml"):
            unknown = Found(say("could not be checked: {problem}", problem=problem.detail), Level.HINT)
            yield line(f"probe_{problem.probe}", problem.probe, unknown)


def _cpu(cpu: Cpu) -> Found:
    cores, usable = cpu.physical_cores, cpu.usable_cores
    return Found(say("{model}; cores: {cores}, usable: {usable}", model=cpu.model, cores=cores, usable=usable))


def _memory(memory: Memory) -> Found:
    total, available = size(memory.total_bytes), size(memory.available_bytes)
    found = say("{available} available of {total}", available=available, total=total)
    if memory.limited_by_cgroup:
        found = say("{found} (the limit of this container or job)", found=found)
    if not memory.total_bytes or memory.available_bytes >= GIB:
        return Found(found)
    fix = say("find what uses it: ps aux --sort=-rss | head; in a container or job, request more memory")
    return Found(found, Level.ERROR, fix)


def _shm(shm: Disk) -> Found:
    found = say("{free} free of {total}", free=size(shm.free_bytes), total=size(shm.total_bytes))
    if shm.free_bytes >= ENOUGH_SHM:
        return Found(found)
    found = say("{found}; NCCL and DataLoader workers need {wanted}", found=found, wanted=size(ENOUGH_SHM))
    fix = say("docker run --shm-size=16g (or --ipc=host); outside a container: mount -o remount,size=16G /dev/shm")
    return Found(found, Level.WARNING, fix)


def _disk(disk: Disk) -> Found:
    found = say(
        "{free} free of {total} at {path}", free=size(disk.free_bytes), total=size(disk.total_bytes), path=disk.path
    )
    if disk.free_bytes >= 20 * GIB:
        return Found(found)
    fix = say("an AdamW checkpoint takes 12 bytes per parameter: free up space, or use another disk")
    return Found(found, Level.ERROR if disk.free_bytes < GIB else Level.WARNING, fix)


def _cache(cache: Cache) -> Found:
    if not cache.writable:
        fix = say("export {variable}=/path/to/folder", variable=cache.variable)
        return Found(say("{path} is not writable", path=cache.path), Level.WARNING, fix)
    if cache.free_bytes is None:
        return Found(say("{path}, writable", path=cache.path))
    found = say("{path}, writable, {free} free", path=cache.path, free=size(cache.free_bytes))
    if cache.free_bytes >= GIB:
        return Found(found)
    fix = say("free up space, or run: export {variable}=/path/to/folder", variable=cache.variable)
    return Found(found, Level.WARNING, fix)


def _open_files(limit: int | None) -> Found:
    if limit is None:
        return Found(say("no limit"))
    if limit >= ENOUGH_FILES:
        return Found(say("at most {n}", n=limit))
    return Found(say("at most {n}; DataLoader workers may need more", n=limit), Level.HINT, say("ulimit -n 65536"))


def _memlock(machine: Machine) -> Found:
    limit = machine.limits.memlock_bytes
    if limit is None:
        return Found(say("no limit"))
    infiniband = any(interface.name.startswith("ib") for interface in machine.interfaces)
    if limit >= ENOUGH_MEMLOCK or not (infiniband or machine.gpus):
        return Found(say("at most {limit}", limit=size(limit)))
    found = say("at most {limit}; should be unlimited for pinned buffers and InfiniBand", limit=size(limit))
    fix = say("ulimit -l unlimited (docker run --ulimit memlock=-1)")
    return Found(found, Level.WARNING if infiniband else Level.HINT, fix)
