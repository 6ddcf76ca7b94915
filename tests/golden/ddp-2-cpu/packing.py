"""Documents cut into pieces, and pieces packed into rows: which documents are used, and which pieces make a row.

Documents of the same lengths are always packed alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sources import held_out
from token_cache import Tokens

FILES = ("starts", "sizes", "ends")  # of each piece: its first token, and its predictions; of each row: its last piece
NOTES = "notes.json"  # which documents are used, to be told at each start


@dataclass(kw_only=True)
class Selection:
    """Which documents make rows, and how they are cut."""

    length: int
    """Predictions of a row."""
    part: str = ""
    """What is kept for evaluation: `5%` or `200`; empty: nothing."""
    evaluation: bool = False
    """Whether these rows are that part, or the rest."""
    min_tokens: int = 0
    max_tokens: int = 0
    """Documents with more tokens are left out; 0: none."""
    whole: bool = False
    """Whether a document is one piece, whose end is cut off, instead of as many as it needs."""


def write_rows(tokens: Tokens, folder: Path, selection: Selection) -> None:
    """Write which pieces of documents make a row. The folder appears only once it is complete."""
    aside = folder.with_name(f"{folder.name}.{socket.gethostname()}-{os.getpid()}.partial")
    aside.mkdir(parents=True)
    try:
        kept, notes = chosen(tokens, selection)
        (aside / NOTES).write_text(json.dumps({"names": tokens.names, "notes": notes}))
        counts = np.zeros(selection.length + 1, dtype=np.int64)
        for _, sizes in pieces(tokens, kept, selection):
            counts += np.bincount(sizes, minlength=len(counts))
        if not counts.any():
            raise SystemExit(f"{tokens.about['data']}: no text to train on")
        if counts.sum() > 1e7:
            print(f"packing {counts.sum():,} pieces of documents into rows", flush=True)
        row_of = best_fit(counts)
        ends = np.bincount(row_of).cumsum()
        np.save(aside / "ends.npy", ends)
        kinds = np.int64, np.uint16 if selection.length < 1 << 16 else np.uint32
        starts, sizes = (
            np.lib.format.open_memmap(aside / f"{name}.npy", mode="w+", dtype=kind, shape=(int(counts.sum()),))
            for name, kind in zip(FILES, kinds, strict=False)
        )
        place = np.concatenate(([0], ends[:-1]))  # of each row's next piece
        turn = counts[::-1].cumsum()[::-1] - counts  # of the next piece of each size, the longest first
        done = 0
        for some_starts, some_sizes in pieces(tokens, kept, selection):
            rows = row_of[turn[some_sizes] + among_equals(some_sizes.astype(kinds[1]))]
            turn += np.bincount(some_sizes, minlength=len(turn))
            places = place[rows] + among_equals(rows)
            np.add.at(place, rows, 1)
            starts[places], sizes[places] = some_starts, some_sizes
            done += len(some_sizes)
        starts.flush()
        sizes.flush()
        with contextlib.suppress(OSError):  # another machine with the same disk was faster
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def chosen(tokens: Tokens, selection: Selection) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Return whether each document is used, and notes on how many are left out, and why."""
    most, length = selection.max_tokens or np.iinfo(np.uint32).max, selection.length
    kept: list[np.ndarray[Any, Any]] = []
    hashes: list[np.ndarray[Any, Any]] = []
    of_length, cut = 0, 0
    for some in tokens.documents():
        used = (some["size"] >= max(2, selection.min_tokens)) & (some["size"] <= most)
        of_length += int(used.sum())
        if selection.whole:
            cut += int((used & (some["size"] > length + 1)).sum())
            used &= (some["first"] <= length) & (some["first"] < some["size"])
        kept.append(used)
        hashes += [some["hash"][used]] if selection.part else []
    every, name, notes = np.concatenate(kept), tokens.about["data"], list[str]()
    if selection.min_tokens or selection.max_tokens:
        limits = f"{selection.min_tokens} to {selection.max_tokens or 'any number of'} tokens"
        notes.append(f"{name}: documents of {limits}: {of_length:,} of {len(every):,}")
    if selection.whole:
        told = f"{cut} cut to {length} tokens, {len(every) - every.sum()} dropped"
        notes.append(f"{name}: samples: {len(every)}, {told}")
    if selection.part:
        every[every] = held_out(np.concatenate(hashes), selection.part) == selection.evaluation
    return every, notes


def pieces(
    tokens: Tokens, kept: np.ndarray[Any, Any], selection: Selection
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield where pieces of documents start and how many predictions they have, some documents at a time."""
    length, start, first = selection.length, 0, 0
    for some in tokens.documents():
        lengths, used = some["size"].astype(np.int64), kept[first : first + len(some)]
        begin, sizes = (start + lengths.cumsum() - lengths)[used], lengths[used] - 1
        start, first = start + int(lengths.sum()), first + len(some)
        if selection.whole:
            yield begin, np.minimum(sizes, length)
            continue
        number = -(-sizes // length)
        last = number.cumsum()
        nth = np.arange(number.sum()) - (last - number).repeat(number)
        full = np.full(len(nth), length)
        full[last - 1] = sizes - (number - 1) * length
        yield begin.repeat(number) + nth * length, full


def best_fit(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the row of each piece, the longest pieces first; `counts` says how many there are of each size.

    Each goes into the row where it leaves the least space. Pieces of one size, and rows with the same space, are placed
    together: what a loop over the pieces would do, in as many steps as there are pairs of a size and a space.
    """
    length = len(counts) - 1
    row_of = np.empty(int(counts.sum()), dtype=np.int32 if counts.sum() < 1 << 31 else np.int64)
    with_space: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(length + 1)]
    spaces, n_rows, placed = 0, 0, 0  # bit s of `spaces`: some rows have exactly s places left
    for size in range(length, 0, -1):
        left = int(counts[size])
        while left:
            if enough := spaces >> size:
                space = size + (enough & -enough).bit_length() - 1
                rows = with_space[space].pop()
            else:
                space, rows = length, np.arange(n_rows, n_rows - (-left // (length // size)), dtype=row_of.dtype)
                n_rows += len(rows)
            each = space // size  # as long as a row has space for one more, it is the one with the least
            used = min(len(rows), -(-left // each))
            rest, rows = rows[used:], rows[:used]
            number = min(left, each * used)
            row_of[placed : placed + number] = rows.repeat(each)[:number]
            in_last = number - each * (used - 1)
            for some, taken in ((rest, 0), (rows[:-1], each), (rows[-1:], in_last)):
                if len(some) and space > taken * size:
                    with_space[space - taken * size].append(some)
                    spaces |= 1 << (space - taken * size)
            if not with_space[space]:
                spaces &= ~(1 << space)
            left, placed = left - number, placed + number
    return row_of


def among_equals(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return how many equal values stand before each."""
    order = values.argsort(kind="stable")
    ordered = values[order]
    runs = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.arange(len(values)) - runs.repeat(np.diff(runs, append=len(values)))
    return number
