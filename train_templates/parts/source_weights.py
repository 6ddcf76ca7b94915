"""Several sources with weights: how many times each sample is seen, so that each source has its share of an epoch.

Every sample is seen at least once in an epoch: those of the source that is largest relative to its weight once, the
others often enough for the shares to be right. If that is not a whole number, some of a source's samples are seen once
more than its others; their content decides which, so they are the same in every epoch, run and number of ranks.
"""

from __future__ import annotations

# feature: sampled
import os

# end: sampled
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# feature: sampled
from sources import hash_of

# end: sampled
from sources import listed

Array = np.ndarray[Any, Any]


class Part(NamedTuple):
    """The samples of one source."""

    name: str
    sizes: Array
    """What each counts."""
    hashes: Array
    """Of their contents."""


def weights_of(config: Any) -> dict[str, float]:
    """Return the weight of each source of the training data."""
    return dict(zip(listed(config.train_data), map(float, config.source_weights.split(",")), strict=True))


def times(parts: Sequence[Part], weights: Sequence[float], by: str) -> tuple[list[Array], list[str]]:
    """Return how many times each sample of each source is seen in an epoch, and a line for each source that says so."""
    amounts = [int(part.sizes.sum()) for part in parts]
    for part, amount in zip(parts, amounts, strict=True):
        if not amount:
            raise SystemExit(f"{part.name}: no text to train on")
    needs = [weight / amount for amount, weight in zip(amounts, weights, strict=True)]
    found, lines = [], []
    for part, amount, weight, need in zip(parts, amounts, weights, needs, strict=True):
        passes = need / min(needs)  # exactly 1 for the largest relative to its weight
        seen = np.full(len(part.sizes), int(passes))
        order = part.hashes.argsort(kind="stable")
        reached = part.sizes[order].cumsum()
        seen[order[: np.searchsorted(reached, (passes - int(passes)) * amount, side="right")]] += 1
        share = weight / sum(weights)
        lines.append(f"{part.name}: {share:.1%} of the {by}: {amount:,} are seen {passes:.2f} times")
        found.append(seen)
    return found, lines


# feature: sampled
def places(config: Any, origins: Sequence[str], sizes: Sequence[int], contents: Sequence[bytes]) -> list[int]:
    """Return which samples an epoch has, each as often as its source's weight asks for, in their order.

    `origins` are their sources, `sizes` their tokens, if they have any.
    """
    by = config.weigh_by if sizes else "samples"
    counts = np.array(sizes if by == "tokens" else [1] * len(origins), dtype=np.int64)
    hashes = np.array([hash_of(content) for content in contents], dtype=np.uint64)
    of_source = np.array(origins)
    weights = weights_of(config)
    chosen = {name: np.flatnonzero(of_source == name) for name in weights}
    parts = [Part(name, counts[own], hashes[own]) for name, own in chosen.items()]
    seen = np.zeros(len(origins), dtype=np.int64)
    found, lines = times(parts, [*weights.values()], by)
    if os.environ.get("RANK", "0") == "0":
        print(*lines, sep="\n", flush=True)
    for own, some in zip(chosen.values(), found, strict=True):
        seen[own] = some
    return np.arange(len(origins)).repeat(seen).tolist()


# end: sampled
