"""An exponential moving average of the trained weights: what is evaluated, and what becomes the model.

It is part of the optimizer's state, so every checkpoint contains it, sharded or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def keep_average(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Update the average after each step of the optimizer. It starts as the weights after the first step."""

    @torch.no_grad()
    def update(stepped: torch.optim.Optimizer, *_: Any) -> None:
        for group in stepped.param_groups:
            for parameter in (p for p in group["params"] if p in stepped.state):
                state = stepped.state[parameter]
                if "average" in state:
                    state["average"].lerp_(parameter, 1 - decay)
                else:
                    state["average"] = parameter.detach().clone()

    optimizer.register_step_post_hook(update)


@torch.no_grad()
def swap(optimizer: Any) -> None:
    """Exchange the weights and their averages."""
    averages: list[tuple[Tensor, Tensor]] = [
        (parameter, state["average"]) for parameter, state in optimizer.state.items() if "average" in state
    ]
    for parameter, average in averages:
        weight = parameter.detach().clone()
        parameter.copy_(average)
        average.copy_(weight)


@contextmanager
def averaged(optimizer: Any) -> Iterator[None]:
    """Compute with the averages in place of the weights."""
    swap(optimizer)
    try:
        yield
    finally:
        swap(optimizer)
