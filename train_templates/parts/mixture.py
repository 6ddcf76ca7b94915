"""Several sources of documents as one, each with the share of the training that its weight gives it.

source_weights.py says how many times each document is seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from source_weights import Part, times, weights_of
from token_cache import Recipe, Tokens, tokens_of

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

    @property
    def names(self) -> list[str]:
        """What notes on these tokens begin with."""
        return [self.about["data"], *(part.about["data"] for part in self.parts)]

    def documents(self) -> Iterator[Array]:
        """Yield what is known about the documents, some at a time."""
        for part in self.parts:
            yield from part.documents()

    @property
    def key(self) -> list[Any]:
        """What decides the mixture."""
        return [[part.folder.name for part in self.parts], self.weights, self.by]

    def times(self, kept: Array, length: int) -> tuple[Array, list[str]]:
        """Return how many times each document is seen in an epoch, where some are not kept, and a line on each source.

        A document counts as one sample, or as its learned tokens, within `length` if that is not 0.
        """
        found, place = [], 0
        for part in self.parts:
            every = np.concatenate(list(part.documents()))
            used = kept[place : place + len(every)]
            sizes = np.ones(len(every), dtype=np.int64)
            if self.by == "tokens":
                sizes = learned(part, length) if length else every["size"].astype(np.int64) - 1
            found.append(Part(part.about["data"], sizes[used], every["hash"][used]))
            place += len(every)
        counts = np.zeros(len(kept), dtype=np.int64)
        seen, lines = times(found, self.weights, self.by)
        counts[kept] = np.concatenate(seen)
        return counts, lines


def mixture_of(config: Any, recipe: Callable[[Any, str, str], Recipe]) -> Mixture:
    """Return the tokens of the training data's sources, with their weights."""
    weights = weights_of(config)
    parts = [tokens_of(config.cache_dir, recipe(config, name, "train")) for name in weights]
    return Mixture(parts, list(weights.values()), config.weigh_by)


def learned(part: Tokens, length: int) -> Array:
    """Return how many of the first `length` predictions of each document are learned: the others are complements."""
    counts, place = [], 0
    for some in part.documents():
        for size in some["size"].tolist():
            counts.append(int((part.ids[place + 1 : place + min(size, length + 1)] >= 0).sum()))
            place += size
    return np.array(counts, dtype=np.int64)
