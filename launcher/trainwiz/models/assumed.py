"""The shape that a model is assumed to have where only its number of parameters is known."""

from __future__ import annotations

import bisect

from trainwiz.models.reader import of_config
from trainwiz.models.transformer import Transformer

_LAYERS_TO_WIDTH = 128
"""Width over depth of Llama 2 7B, 13B and 70B (4096 / 32 … 8192 / 80): https://arxiv.org/abs/2307.09288, table 1."""
_HEAD_SIZE = 128
_VOCABULARY = 128_256
"""Llama 3's: most models since 2024 have 100,000 tokens or more."""
_SMALL_VOCABULARY = 32_000
_SMALL = 1_000_000_000
_LARGEST = 10**13
"""No model has more; a name that claims it is taken for this many."""


def of_parameters(parameters: int) -> Transformer:
    """A Llama of about this many parameters: 12 h² of them in a layer of width h, with h / 128 layers."""
    vocabulary = _VOCABULARY if parameters >= _SMALL else _SMALL_VOCABULARY
    wanted = min(parameters, _LARGEST)
    heads = range(1, int((wanted * _LAYERS_TO_WIDTH / 12) ** (1 / 3)) // _HEAD_SIZE + 3)
    fit = max(1, bisect.bisect_right(heads, wanted, key=lambda n: _shape(n * _HEAD_SIZE, vocabulary).parameters))
    smaller, larger = (_shape(n * _HEAD_SIZE, vocabulary) for n in (fit, fit + 1))
    return min(smaller, larger, key=lambda shape: abs(shape.parameters - wanted))


def _shape(width: int, vocabulary: int) -> Transformer:
    found = of_config(
        {
            "hidden_size": width,
            "num_hidden_layers": max(2, width // _LAYERS_TO_WIDTH),
            "num_attention_heads": width // _HEAD_SIZE,
            # Two thirds of 4 h with a gate, rounded up to a multiple of 256.
            "intermediate_size": -(-8 * width // (3 * 256)) * 256,
            "vocab_size": vocabulary,
        }
    )
    assert found is not None
    return found
