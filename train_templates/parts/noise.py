"""Noise on the embeddings while a language model is trained: NEFTune (https://arxiv.org/abs/2310.05914)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def add_noise(model: Any, alpha: float, length: int) -> None:
    """Add uniform noise of alpha / sqrt(tokens * hidden size) to the embeddings of each row, but not in evaluation.

    `length` is the most tokens of a row, since kernels for documents get the rows of a micro-batch as one long row. The
    noise is drawn from the generator that each update seeds, so a resumed training draws the same.
    """

    def noisy(embeddings: torch.nn.Module, _inputs: Any, found: Tensor) -> Tensor:
        if not embeddings.training or alpha == 0:
            return found
        size = alpha / (min(found.shape[-2], length) * found.shape[-1]) ** 0.5
        return found + torch.empty_like(found).uniform_(-size, size)

    model.get_input_embeddings().register_forward_hook(noisy)
