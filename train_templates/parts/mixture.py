"""Several sources of documents as one, each with the share of the training that its weight gives it.

Every document is seen at least once in an epoch: the source that is largest for its weight once, the others so many
more times that the shares are right. Where that is no whole number, some of a source's documents are seen once more
than its others; their content decides which, so they are the same in every epoch, run, and world of ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from token_cache import Tokens

Array = np.ndarray[Any, Any]


class Mixture(Tokens):
    """The tokens of several sources, as if they were those of one."""

    def __init__(self, parts: list[Tokens], weights: list[float], by: str) -> None:
        self.parts, self.weights, self.by = parts, weights, by
        self.folder: Path = parts[0].folder
        self.about = {"data": ", ".join(part.about["data"] for part in parts)}
        self.ids: Any = self
        self.begins = [0, *accumulate(len(part.ids) for part in parts)][:-1]

    def __getitem__(self, place: slice) -> Array:
        part = bisect_right(self.begins, place.start) - 1
        begin = self.begins[part]
        return self.parts[part].ids[place.start - begin : place.stop - begin]

    def documents(self) -> Iterator[Array]:
        """Yield what is known of the documents, some at a time."""
        for part in self.parts:
            yield from part.documents()

    @property
    def key(self) -> list[Any]:
        """What decides the mixture."""
        return [[part.folder.name for part in self.parts], self.weights, self.by]

    def times(self, kept: Array, length: int) -> Array:
        """Return how many times each document is seen in an epoch, where some are not kept; says it for each source.

        A document counts as one sample, or as the tokens of it that are learned, within `length`; 0: all are.
        """
        found, place = [], 0
        for part in self.parts:
            every = np.concatenate(list(part.documents()))
            used = kept[place : place + len(every)]
            sizes = learned(part, length) if length else every["size"].astype(np.int64) - 1
            found.append(
                (part.about["data"], used, sizes if self.by == "tokens" else np.ones_like(sizes), every["hash"])
            )
            place += len(every)
        amounts = [int(sizes[used].sum()) for _, used, sizes, _ in found]
        for (name, *_), amount in zip(found, amounts, strict=True):
            if not amount:
                raise SystemExit(f"{name}: no text to train on")
        needs = [weight / amount for amount, weight in zip(amounts, self.weights, strict=True)]
        counts = []
        for (name, used, sizes, hashes), amount, weight, need in zip(found, amounts, self.weights, needs, strict=True):
            passes = need / min(needs)  # exactly 1 for the largest for its weight
            seen = used * int(passes)
            order = np.flatnonzero(used)[hashes[used].argsort(kind="stable")]
            reached = sizes[order].cumsum()
            seen[order[: np.searchsorted(reached, (passes - int(passes)) * amount, side="right")]] += 1
            share = weight / sum(self.weights)
            print(f"{name}: {share:.1%} of the {self.by}: {amount:,} are seen {passes:.2f} times", flush=True)
            counts.append(seen)
        return np.concatenate(counts)


def learned(part: Tokens, length: int) -> Array:
    """Return how many of the first `length` predictions of each document are learned: the others are complements."""
    counts, place = [], 0
    for some in part.documents():
        for size in some["size"].tolist():
            counts.append(int((part.ids[place + 1 : place + min(size, length + 1)] >= 0).sum()))
            place += size
    return np.array(counts, dtype=np.int64)
