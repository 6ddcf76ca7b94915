"""Encodes rows of data as documents of token ids, in order; large data is encoded by one process per core."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np

from sources import Row, Sources, hash_of

DOCUMENT = np.dtype([("size", "<u4"), ("first", "<u4"), ("hash", "<u8")])
"""For each document: its tokens, the index of the first one to learn (at least 1), and a hash of them all."""
BATCH_BYTES, BATCH_ROWS = 1 << 19, 2000  # what a process encodes at a time
Notes = dict[str, tuple[int, str]]  # notes on the data: how often each applies, and where first
Encode = Callable[[list[Row]], tuple[list[list[int]], Notes]]


class Interrupted(SystemExit):
    """Ends this process; another one can continue from what is written."""


@dataclass(kw_only=True)
class Encoder:
    """Turns rows into documents of token ids."""

    encode: Encode
    vocabulary: int
    """Token ids are less than this."""
    complemented: bool = False
    """Whether some tokens are given but not learned."""

    @property
    def dtype(self) -> str:
        """The smallest type that holds the tokens."""
        if self.complemented:
            return "int16" if self.vocabulary <= 1 << 15 else "int32"
        return "uint16" if self.vocabulary <= 1 << 16 else "int32"


@dataclass
class Encoded:
    """The documents of some rows, as the files hold them."""

    rows: int
    tokens: bytes
    documents: bytes
    notes: Notes


def encoded_batches(rows: Iterable[Row], encoder: Encoder, skipped: int) -> Iterator[Encoded]:
    """Yield the rows after those that are skipped, encoded: by one process per core, if there are many."""
    batches = batched(itertools.islice(iter(rows), skipped, None))
    workers = cores() if isinstance(rows, Sources) and rows.large else 1
    if workers == 1:
        yield from (pack(batch, encoder) for batch in batches)
        return
    global work
    work = functools.partial(pack, encoder=encoder)  # processes inherit it, with the tokenizer in it
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=begin, initargs=(os.getpid(),))
    waiting: deque[Future[Encoded]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(do, batch))
            if len(waiting) > 3 * workers:  # the batches in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise Interrupted("a process that tokenizes was killed, perhaps because memory ran out: see `dmesg`") from None
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


work: Callable[[list[Row]], Encoded]


def do(batch: list[Row]) -> Encoded:
    """Encode a batch in a process that was forked for it."""
    return work(batch)


def begin(parent: int) -> None:
    """Make a process end with its parent, and leave Ctrl-C to the parent."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process has one core
    gc.freeze()  # memory stays shared with the parent as long as the collector does not touch it


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def batched(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield rows in lists, of about the same length."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += length_of(row[1])
        if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def length_of(value: Any) -> int:
    """Return about how long a row is."""
    if isinstance(value, bytes | str):
        return len(value)
    return sum(len(text) if isinstance(text, str) else 100 for text in value.values()) if isinstance(value, dict) else 1


def pack(batch: list[Row], encoder: Encoder) -> Encoded:
    """Encode rows as the files store them."""
    documents, notes = encoder.encode(batch)
    table = np.zeros(len(documents), dtype=DOCUMENT)
    arrays = [np.array(tokens, dtype=encoder.dtype) for tokens in documents]
    for i, tokens in enumerate(arrays):
        table[i] = len(tokens), first_learned(tokens), hash_of(tokens.tobytes())
    return Encoded(len(batch), b"".join(tokens.tobytes() for tokens in arrays), table.tobytes(), notes)


def first_learned(tokens: np.ndarray[Any, Any]) -> int:
    """Return the place of the first token that is learned, at least 1; behind the last one if there is none."""
    if tokens.dtype.kind == "u":
        return 1
    learned = tokens[1:] >= 0
    return 1 + int(learned.argmax()) if learned.any() else max(1, len(tokens))


def merge(notes: Notes, others: Notes) -> None:
    """Add up notes; the first place stays."""
    for kind, (count, place) in others.items():
        before, first = notes.get(kind, (0, place))
        notes[kind] = before + count, first
