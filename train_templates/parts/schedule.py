"""The learning rate of each update: a warm-up, then a decay to a floor, which ends with the training.

Nothing here has state: a resumed training has the rates of an uninterrupted one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train import Config

SCHEDULES = {
    "lr_scheduler_type": ("constant", "linear", "cosine", "polynomial", "wsd"),
    "decay_type": ("linear", "cosine", "1-sqrt"),
}
"""The legal values of fields of Config."""


def learning_rate(config: Config, update: int, total: int) -> float:
    """Return the rate of update 0 … `total` - 1. The floor, `min_lr_ratio` of the peak, comes after the last update."""
    warmup = config.n_warmup_steps or math.ceil(config.warmup_ratio * total)
    if update < warmup:
        return config.learning_rate * (update + 1) / warmup
    share = share_of_peak(config, update - warmup, max(1, total - warmup), total)
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * share)


def share_of_peak(config: Config, done: int, length: int, total: int) -> float:
    """Return the factor of the decay, 1 … 0, when `done` of the `length` updates after the warm-up are done."""
    progress = done / length
    if config.lr_scheduler_type == "wsd":  # warm-up, stable, decay: https://arxiv.org/abs/2404.06395
        decay = min(length, math.ceil(config.decay_ratio * total))
        return down(config.decay_type, max(0.0, (done - (length - decay)) / decay))
    if config.lr_scheduler_type == "polynomial":
        return (1 - progress) ** config.polynomial_power
    return down(config.lr_scheduler_type, progress)


def down(course: str, progress: float) -> float:
    """Return the value of a decay from 1 to 0."""
    return {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "1-sqrt": 1 - math.sqrt(progress),  # https://arxiv.org/abs/2405.18392
    }[course]
