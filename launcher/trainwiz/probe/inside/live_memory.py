"""Follow the storages of tensors through an update: what is in memory at the peak of each part, and which line made it.

A storage counts from the operation that makes it until its last tensor is gone. It imports nothing that a training does
not import, and knows nothing about models, losses or engines.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HERE = os.path.abspath(__file__)
Part = tuple[str, int]
"""A moment of an update, and the layer: 0 and 1 are the first ones, -1 is the last; 0 outside of layers."""


class Held:
    """A storage in memory."""

    __slots__ = ("bytes", "dtype", "kind", "shape", "site")

    def __init__(self, kind: str, size: int, tensor: Any, site: str) -> None:
        self.kind, self.bytes, self.site = kind, size, site
        self.shape, self.dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


class Live(TorchDispatchMode):
    """Notes every storage that operations make. `counts` says which tensors are meant; `part` is set from outside."""

    def __init__(self, counts: Callable[[Any], bool], project: str) -> None:
        super().__init__()
        self.counts, self.project = counts, project + os.sep
        self.now, self.held, self.sites = 0, {}, {}  # type: int, dict[int, Held], dict[int, str]
        self.part: Part = ("start", 0)
        self.peaks: dict[Part, tuple[int, list[Held]]] = {}
        self.keeps = False
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Any:
        live, resize = self, self._resize

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            live.resized(storage)
            return result

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]  # FSDP frees weights by it
        return super().__enter__()

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and what would keep a compiler out is called for each operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its parts come here, too
        made = func(*args, **(kwargs or {}))
        self.note(made)
        if func.namespace == "c10d":  # what ranks exchange
            for given in args[:2]:
                self.name(_tensors(given), "gathered")
        elif func is torch.ops.aten._to_copy.default and self.kind(args[0]) == "parameters":
            self.name([made], "gathered")  # the copy in 16 bits that autocast keeps
        return made

    def kind(self, tensor: Any) -> str:
        """The kind that a tensor was given; empty if it is not followed."""
        held = self.held.get(tensor.untyped_storage()._cdata)
        return held.kind if held else ""

    def note(self, made: Any) -> None:
        """Count the storages of an operation's results."""
        for tensor in _tensors(made):
            if self.counts(tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.held:
                    self.add(key, storage, tensor)

    def add(self, key: int, storage: Any, tensor: Any) -> None:
        """A storage that was not there before."""
        size = storage.nbytes()
        self.held[key] = Held(self.part[0], size, tensor, self.site() if self.keeps else "")
        weakref.finalize(storage, self.drop, key).atexit = False
        self.grow(size)

    def drop(self, key: int) -> None:
        """The last tensor of a storage is gone."""
        gone = self.held.pop(key, None)
        self.now -= gone.bytes if gone else 0

    def resized(self, storage: Any) -> None:
        """A storage has another size; what was seen of it before stays as it was."""
        if (old := self.held.get(storage._cdata)) is not None:
            new = Held.__new__(Held)
            new.kind, new.site, new.shape, new.dtype = old.kind, old.site, old.shape, old.dtype
            new.bytes = storage.nbytes()
            self.held[storage._cdata] = new
            self.grow(new.bytes - old.bytes)

    def grow(self, size: int) -> None:
        """Remember all that is in memory where that is the most of this part."""
        self.now += size
        if self.keeps and size > 0 and self.now > self.peaks.get(self.part, (0, []))[0]:
            self.peaks[self.part] = (self.now, list(self.held.values()))

    def enter(self, part: Part) -> None:
        """The next part of the update begins."""
        self.part = part
        if self.keeps and self.now > self.peaks.get(part, (0, []))[0]:
            self.peaks[part] = (self.now, list(self.held.values()))

    def name(self, tensors: Iterable[Any], kind: str) -> None:
        """Set the kind of tensors, even if they were seen before."""
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            held = self.held.get(local.untyped_storage()._cdata)
            if held is not None:
                held.kind = kind

    def site(self) -> str:
        """The line that makes a tensor: the innermost outside of torch; in a backward pass, that of the forward."""
        node = torch._C._current_autograd_node()
        if node is not None:
            line = self.sites.get(node._sequence_nr(), "")
            return f"{node.name().removesuffix('0')} of {line}" if line else node.name().removesuffix("0")
        line = self.line()
        self.sites[torch.autograd._get_sequence_nr() - 1] = line
        return line

    def line(self) -> str:
        """The innermost line of the project, or else of a library that is not torch."""
        frame, found = sys._getframe(1), ""
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self.project) and "site-packages" not in file:
                return found or f"{file[len(self.project) :]}:{frame.f_lineno}"
            if not found and file != HERE and not any(part in file for part in _NEVER):
                found = f"{os.sep.join(file.split(os.sep)[-3:])}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return found

    def groups(self, part: Part) -> list[list[Any]]:
        """What is in memory at the peak of a part: kind, line, type, shape, how many, bytes of all."""
        many: Counter[tuple[Any, ...]] = Counter()
        sizes: Counter[tuple[Any, ...]] = Counter()
        for held in self.peaks[part][1]:
            key = (held.kind, held.site, held.dtype, held.shape)
            many[key] += 1
            sizes[key] += held.bytes
        return [[*key, many[key], size] for key, size in sizes.items() if size]


_NEVER = (
    *(f"{os.sep}torch{os.sep}", f"{os.sep}accelerate{os.sep}", f"{os.sep}probe{os.sep}inside{os.sep}"),
    *("<", f"{os.sep}contextlib.py", f"{os.sep}functools.py"),
)


def _tensors(made: Any) -> list[Any]:
    if isinstance(made, torch.Tensor):
        return [made]
    return [one for part in made for one in _tensors(part)] if isinstance(made, list | tuple) else []
