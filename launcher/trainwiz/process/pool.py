"""The same function on many items, over the cores of this machine."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from trainwiz.process import termination

Item = TypeVar("Item")
Result = TypeVar("Result")
_SMALLEST = 8
"""Items in a part, at least."""
_LEAST = 64
"""Fewer items are done before other processes would have started."""
_SHARE = 8
"""Each part is an eighth of what is left for a process: neighboring items share work, and all end together."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The results in the order of the items. `function` is a module's own, and raises nothing."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, len(items) // _LEAST)
    if workers < 2:
        yield from map(function, items)
        return
    # Forked, so that nothing is imported again.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin) as pool:
        for results in pool.map(functools.partial(_all, function), list(_parts(items, workers))):
            yield from results


def _parts(items: Sequence[Item], workers: int) -> Iterator[Sequence[Item]]:
    """The items in parts that become smaller and smaller."""
    start = 0
    while start < len(items):
        size = max(_SMALLEST, (len(items) - start) // (workers * _SHARE))
        yield items[start : start + size]
        start += size


def _all(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


@contextlib.contextmanager
def rarely_collecting() -> Iterator[None]:
    """Run the cyclic garbage collector rarely: among many syntax trees it takes time and finds nothing."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _begin() -> None:
    termination.restore_defaults()
    gc.freeze()
