"""The same function on many items, over the cores of this machine."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from trainwiz.process import termination

Item = TypeVar("Item")
Result = TypeVar("Result")
_LEAST = 64
"""Fewer items are done before other processes would have started."""
_CHUNKS = 10
"""Parts per process: neighboring items share work, and no process should have much left at the end."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The results in the order of the items. `function` is a module's own, and raises nothing."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, len(items) // _LEAST)
    if workers < 2:
        yield from map(function, items)
        return
    # Forked, so that nothing is imported again.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin) as pool:
        yield from pool.map(function, items, chunksize=max(1, len(items) // (workers * _CHUNKS)))


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
