"""Checkpoints that a thread writes: the state is copied into host memory, and the training goes on beside the writing.

The copy's memory is kept for the next save. What is written is the same, byte for byte.
"""

from __future__ import annotations

import copy

# feature: fsdp
import os

# end: fsdp
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# feature: fsdp
from torch.distributed.tensor import DTensor

# end: fsdp
ALIGNED = 64
"""Bytes; every type of tensors can begin there."""


class Staged:
    """A snapshot of the state, which is read on the training's thread and written on another."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Path, Any], object]) -> None:
        self.read, self.write_state = read, write
        self.state: Any = None
        self.device = 0
        self.memory: list[Tensor] = []  # of the copies, in the order in which the state is read
        self.is_short = False

    def copy(self, _folder: Path) -> bool:
        """Copy the state. Return whether the training may go on before it is written."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            self.device = torch.cuda.current_device()
        self.state = self.read()
        sizes = [storage.nbytes() for storage in storages_of(self.state)]
        if [part.numel() for part in self.memory] != sizes:
            self.memory, was_short = [], self.is_short
            self.is_short = ends_of(sizes)[-1] * ranks_here() > free_memory()
            if self.is_short and not was_short:
                told = f"no memory to copy {sum(sizes):,} bytes: the training waits for its checkpoints"
                print(told, flush=True)
            if self.is_short:
                return False
            self.memory = blocks(sizes)
        self.state = Copies(self.memory).of(self.state)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the next update changes what is copied
        return True

    def write(self, folder: Path) -> None:
        """Write what was copied."""
        if torch.cuda.is_initialized():
            torch.cuda.set_device(self.device)  # a thread begins with the first one
        state, self.state = self.state, None
        self.write_state(folder, state)


class Held:
    """What `safetensors.torch.save_model` asks of a model."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights."""
        return dict(self.weights)


class Copies:
    """Copies of nested tensors. Those that share memory share it afterwards, as tied weights must."""

    def __init__(self, memory: list[Tensor]) -> None:
        self.memory = memory
        self.places: dict[int, int] = {}  # in `memory`, by the address of what is copied

    def of(self, value: Any) -> Any:
        """Return a copy of a value and of all that it holds."""
        # feature: fsdp
        if isinstance(value, DTensor):
            # `from_local` would move the copy to the mesh's device.
            return DTensor(self.of(value.to_local()), value._spec, requires_grad=False)
        # end: fsdp
        if isinstance(value, Tensor):
            return self.of_tensor(value)
        if isinstance(value, dict):
            copied = copy.copy(value)
            copied.update((name, self.of(each)) for name, each in value.items())
            return copied
        return type(value)([self.of(each) for each in value]) if type(value) in (list, tuple) else value

    def of_tensor(self, tensor: Tensor) -> Tensor:
        """Return a view of the copy of the tensor's whole memory."""
        storage, known = tensor.untyped_storage(), len(self.places)
        place = self.places.setdefault(address(storage, known), known)
        if place == known:
            bytes_of = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self.memory[place].copy_(bytes_of, non_blocking=tensor.is_cuda)  # `Staged.copy` waits for CUDA only
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(self.memory[place].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def ends_of(sizes: list[int]) -> list[int]:
    """Return where pieces of memory of these sizes end, each of which begins at a multiple of `ALIGNED`."""
    ends = [0]
    for size in sizes:
        ends.append(-(-ends[-1] // ALIGNED) * ALIGNED + size)
    return ends


def blocks(sizes: list[int]) -> list[Tensor]:
    """Return memory of these sizes. It is one piece, pinned where a GPU copies into it.

    PyTorch's own allocator would pin a block for each, and round it up to a power of two.
    """
    ends = ends_of(sizes)
    whole = torch.empty(ends[-1], dtype=torch.uint8).numpy()
    if torch.cuda.is_initialized():
        cuda: Any = torch.cuda.cudart()
        torch.cuda.check_error(cuda.cudaHostRegister(whole.ctypes.data, whole.nbytes, 1))  # 1: for all devices
        weakref.finalize(whole, cuda.cudaHostUnregister, whole.ctypes.data).atexit = False
    # By way of numpy, each has a storage of its own size, which is what is written.
    return [torch.from_numpy(whole[end - size : end]) for size, end in zip(sizes, ends[1:], strict=True)]


def address(storage: torch.UntypedStorage, known: int) -> int:
    """Return the address of memory; for empty memory, a unique number."""
    return storage.data_ptr() or -known - 1


def storages_of(value: Any) -> list[torch.UntypedStorage]:
    """Return the memory of all tensors, each once, in the order in which `Copies` visits them."""
    found: dict[int, torch.UntypedStorage] = {}

    def look(value: Any) -> None:
        # feature: fsdp
        if isinstance(value, DTensor):
            value = value.to_local()
        # end: fsdp
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            found.setdefault(address(storage, len(found)), storage)
        elif isinstance(value, dict):
            for each in value.values():
                look(each)
        elif type(value) in (list, tuple):
            for each in value:
                look(each)

    look(value)
    return list(found.values())


def ranks_here() -> int:
    """Return how many ranks may copy their state on this machine."""
    # feature: plain
    return 1  # the main process alone
    # end: plain
    # feature: fsdp
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # end: fsdp


def free_memory() -> int:
    """Return the bytes of host memory that are free, by the machine and by the limit of its container."""
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    top, own = Path("/sys/fs/cgroup"), Path()
    with suppress(OSError):
        own = Path(Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/"))
    for folder in (top / part for part in (own, *own.parents)):  # a job's limit may be set in any of them
        with suppress(OSError, ValueError):  # without a limit, or a path of another container
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            lines = (folder / "memory.stat").read_text().splitlines()
            cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
            free.append(limit - used + cached)
    return min(free, default=0)
