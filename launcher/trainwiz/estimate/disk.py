"""Disk for checkpoints and final weights, and the time that saving takes of a training."""

from __future__ import annotations

from trainwiz.estimate.device import Work, training_of
from trainwiz.strategies import Strategy

_HALF = ("fp16", "bf16", "fp8")
_WRITTEN = 1e9
"""Bytes per second to a local NVMe disk or a shared file system, with fsync: what one stream usually gets."""
_HASHED = 1.5e9
"""Bytes per second of SHA-256 on one core with the processor's instructions for it."""


def checkpoint_bytes(strategy: Strategy, work: Work) -> int:
    """One checkpoint: weights, the engine's copies of them, moments; an adapter leaves frozen weights out."""
    trained = training_of(work).parameters
    copies = strategy.checkpoint_copy_bytes(work.precision in _HALF)
    frozen = work.parameters - trained if work.adapter == "none" else 0
    tied = work.transformer if work.tied_head and strategy.saves_ties_twice else None
    again = work.weight_bytes * tied.largest_table if tied else 0
    return (work.weight_bytes + copies + work.moment_bytes) * trained + work.weight_bytes * frozen + again


def final_bytes(work: Work) -> int:
    """The weights that a training leaves: the model's, or an adapter's."""
    return work.weight_bytes * (work.parameters if work.adapter == "none" else training_of(work).parameters)


def saving_seconds(count: int) -> float:
    """How long the training waits for a checkpoint of so many bytes: written, then hashed for its manifest."""
    return count / _WRITTEN + count / _HASHED


def saves(updates: int, every: int) -> int:
    """Checkpoints of a training; the last update is saved, too."""
    return max(1, -(-updates // every)) if every else 1


def disk_bytes(each: int, final: int, made: int, limit: int | None) -> int:
    """What a training needs at most: the checkpoints that are kept, one that is being written, the final weights."""
    kept = min(made, limit) if limit else made
    return (min(made, kept + 1)) * each + final
