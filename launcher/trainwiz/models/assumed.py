"""The shape that a model is assumed to have where only its number of parameters is known."""

from __future__ import annotations

from trainwiz.models.reader import of_config
from trainwiz.models.transformer import Transformer

_LAYERS_TO_WIDTH = 128
"""Width over depth of Llama 2 7B, 13B and 70B (4096 / 32 … 8192 / 80): https://arxiv.org/abs/2307.09288, table 1."""
_HEAD_SIZE = 128
_VOCABULARY = 128_256
"""Llama 3's: most models since 2024 have 100,000 tokens or more."""
_SMALL_VOCABULARY = 32_000
_SMALL = 1_000_000_000


def of_parameters(parameters: int) -> Transformer:
    """A Llama of about this many parameters: 12 h² of them in a layer of width h, with h / 128 layers."""
    vocabulary = _VOCABULARY if parameters >= _SMALL else _SMALL_VOCABULARY
    width = _HEAD_SIZE
    while _shape(width + _HEAD_SIZE, vocabulary).parameters <= parameters:
        width += _HEAD_SIZE
    smaller, larger = (_shape(each, vocabulary) for each in (width, width + _HEAD_SIZE))
    return min(smaller, larger, key=lambda shape: abs(shape.parameters - parameters))


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
