"""Keep a rank on the cores near its GPU, if the machine has several NUMA nodes.

Memory lies on the node of the thread that first writes to it. Copies between host and GPU, and computation on the host,
then use local memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def bind() -> None:
    """Bind this rank's threads to the NUMA node of its GPU. Its log says what was done, or why nothing was."""
    if not torch.cuda.is_available() or not hasattr(os, "sched_setaffinity"):
        return
    address = pci_address(torch.cuda.get_device_properties(torch.cuda.current_device()))
    allowed = os.sched_getaffinity(0)
    cores, why = cores_beside(address, allowed)
    if why:
        print(f"GPU {address or torch.cuda.current_device()}: not bound to a NUMA node: {why}", flush=True)
        return
    for thread in map(int, os.listdir("/proc/self/task")):
        try:
            if os.sched_getaffinity(thread) == allowed:  # others were bound when they were started
                os.sched_setaffinity(thread, cores)
        except ProcessLookupError:
            continue  # it has ended meanwhile
    torch.set_num_threads(min(torch.get_num_threads(), len(cores)))
    print(f"GPU {address}: bound to cores {ranges(cores)} of its NUMA node", flush=True)


def pci_address(properties: Any) -> str:
    """Return a GPU's place on the PCI bus, which no numbering by CUDA_VISIBLE_DEVICES changes; nothing if unknown."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return "" if None in parts else "{:04x}:{:02x}:{:02x}.0".format(*parts)


def cores_beside(address: str, allowed: set[int], system: Path = Path("/sys")) -> tuple[set[int], str]:
    """Return those of the allowed cores that are on the node of a GPU; or none, and why nothing is to be bound."""
    nodes = {int(file.parent.name[4:]): cores_in(file) for file in system.glob("devices/system/node/node*/cpulist")}
    if sum(map(bool, nodes.values())) < 2:  # some nodes have memory only
        return set(), "all cores of this machine are on one node"
    try:
        node = int((system / "bus/pci/devices" / address / "numa_node").read_text()) if address else -1
    except (OSError, ValueError):
        node = -1
    if node not in nodes:  # -1: the firmware does not say which
        return set(), "the node of this GPU is unknown"
    beside = nodes[node] & allowed
    return beside, "" if beside else f"none of the cores that this rank may use ({ranges(allowed)}) are on node {node}"


def cores_in(file: Path) -> set[int]:
    """Return the cores of a list like 0-3,8."""
    parts = [part.split("-") for part in file.read_text().strip().split(",") if part]
    return {core for part in parts for core in range(int(part[0]), int(part[-1]) + 1)}


def ranges(cores: set[int]) -> str:
    """Return the cores as a list like 0-3,8."""
    begins = sorted(core for core in cores if core - 1 not in cores)
    ends = sorted(core for core in cores if core + 1 not in cores)
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in zip(begins, ends, strict=True))
