"""The same function on many items, over the cores of this machine."""

from __future__ import annotations

import contextlib
import gc
import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkContext
from typing import Any, Generic, TypeVar

from trainwiz.process import termination

Item = TypeVar("Item")
Result = TypeVar("Result")
_TAKEN = 8
"""Items that a process takes at once."""
_LEAST = 64
"""Fewer items are done before other processes would have started."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The results in the order of the items. `function` is a module's own, and raises nothing."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, len(items) // _LEAST)
    if workers < 2:
        yield from map(function, items)
        return
    # Forked, so that nothing is imported again.
    context = multiprocessing.get_context("fork")
    work = _Work(function, items, workers, context)
    with ProcessPoolExecutor(workers, context, _begin, (work,)) as pool:
        parts = [part for share in pool.map(_share, range(workers)) for part in share]
    for _, results in sorted(parts, key=lambda part: part[0]):
        yield from results


class _Work(Generic[Item, Result]):
    """What is left to do: a row of neighbors for each process, which share work, and then the ends of other rows."""

    def __init__(
        self, function: Callable[[Item], Result], items: Sequence[Item], workers: int, context: ForkContext
    ) -> None:
        self.function, self.items, self._lock = function, items, context.Lock()
        shared = memoryview(mmap.mmap(-1, 2 * workers * 8)).cast("q")
        self._firsts, self._ends = shared[:workers], shared[workers:]
        for i in range(workers):
            self._firsts[i], self._ends[i] = i * len(items) // workers, (i + 1) * len(items) // workers

    def parts(self, own: int) -> Iterator[tuple[int, Sequence[Item]]]:
        """The parts for one process, each with the place of its first item, until nothing is left for anyone."""
        while (part := self._taken(own)) is not None:
            yield part.start, self.items[part.start : part.stop]

    def _taken(self, own: int) -> range | None:
        with self._lock:
            first, end = self._firsts[own], self._ends[own]
            if first < end:
                self._firsts[own] = min(first + _TAKEN, end)
                return range(first, self._firsts[own])
            other = max(range(len(self._ends)), key=lambda i: self._ends[i] - self._firsts[i])
            first, end = self._firsts[other], self._ends[other]
            self._ends[other] = max(end - _TAKEN, first)
            return range(self._ends[other], end) if first < end else None


_WORK: list[_Work[Any, Any]] = []
"""That of this process."""


def _begin(work: _Work[Any, Any]) -> None:
    termination.restore_defaults()
    gc.freeze()
    _WORK.append(work)


def _share(own: int) -> list[tuple[int, list[Any]]]:
    (work,) = _WORK
    return [(first, [work.function(item) for item in items]) for first, items in work.parts(own)]


@contextlib.contextmanager
def rarely_collecting() -> Iterator[None]:
    """Run the cyclic garbage collector rarely: among many syntax trees it takes time and finds nothing."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
