"""What DoRA adds to LoRA: each forward pass computes every matrix with its adapter again, for the length of its rows.

Counted in `DoraLinearLayer.forward` of peft 0.21 (https://arxiv.org/abs/2402.09353, section 4.3).
"""

from __future__ import annotations

from trainwiz.models import Transformer
from trainwiz.models.transformer import Block

_COPIES = 10
"""Bytes of each weight of the matrix that is measured, under autocast: the adapter's product, scaled, added to the
weight, and the sum in fp32 for its norm.
"""
_UNIT_BYTES = 6
"""Of each number of the unit matrix that the adapter's product is computed from: in fp32, and as autocast casts it."""
_WEIGHT_TRAFFIC = 22
"""Bytes of each weight through memory while these come and go."""
_UNIT_TRAFFIC = 12
"""Bytes of each number of the unit matrix: written, read and written as it is cast, and read."""
_FEATURE_TRAFFIC = 42
"""Bytes of each feature that leaves a matrix, in each pass: both results are scaled and added in fp32."""


def _matrices(model: Transformer, block: Block) -> tuple[tuple[int, int], ...]:
    """The inputs and outputs of a layer's matrices that a token passes."""
    hidden, inner = model.hidden_size, block.intermediate_size
    ups = ((hidden, inner),) * (2 if block.gated else 1)
    keys = ((hidden, block.key_value_size),) * 2
    return ((hidden, block.query_size), *keys, (block.query_size, hidden), *ups, (inner, hidden))


def features_out(model: Transformer) -> int:
    """Features that leave all matrices of the layers, of one token."""
    return sum(block.count * sum(out for _, out in _matrices(model, block)) for block in model.blocks)


def kept_bytes(model: Transformer, number: int) -> int:
    """What all layers keep of a token for the gradient of the lengths: both results of each matrix."""
    return 2 * number * features_out(model)


def working_bytes(model: Transformer) -> int:
    """The most that is in memory while a matrix is measured."""
    return max(
        _COPIES * inputs * outputs + _UNIT_BYTES * inputs**2
        for block in model.blocks
        for inputs, outputs in _matrices(model, block)
    )


def pass_bytes(model: Transformer) -> int:
    """What goes through memory in one forward pass to measure all matrices."""
    return sum(
        block.count * (_WEIGHT_TRAFFIC * inputs * outputs + _UNIT_TRAFFIC * inputs**2)
        for block in model.blocks
        for inputs, outputs in _matrices(model, block)
    )


def token_bytes(model: Transformer) -> int:
    """What goes through memory for one token in one pass."""
    return _FEATURE_TRAFFIC * features_out(model)
