"""What an adapter (LoRA) leaves to train, and the memory that the frozen rest needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz.estimate.experts import left_out

if TYPE_CHECKING:
    from trainwiz.models import Transformer
    from trainwiz.strategies import Strategy, Training

_LAYERS_TO_WIDTH = 128
"""A transformer's width is about 128 times its depth: 4096 / 32 in Llama 2 7B (https://arxiv.org/abs/2307.09288)."""
_FOUR_BITS = 4.127 / 8
"""Bytes of a weight with its quantized constants: https://arxiv.org/abs/2305.14314, section 3."""


def trained_parameters(
    parameters: int, adapter: str, rank: int, transformer: Transformer | None = None, *, frozen_experts: bool = False
) -> int:
    """How many numbers are trained: all, or rank × (inputs + outputs) of every linear layer and every expert.

    A layer of width h has 12 h² weights, and its matrices about 20 h inputs and outputs: a share of 5/3 rank / h.
    """
    if adapter == "none":
        return parameters
    joined = transformer.joined_weights if transformer else 0
    others = max(1, parameters - joined)
    width = (others * _LAYERS_TO_WIDTH / 12) ** (1 / 3)
    of_experts = rank * transformer.joined_features if transformer and not frozen_experts else 0
    return min(parameters, int(others * 5 / 3 * rank / width) + of_experts)


def frozen_bytes_per_rank(
    strategy: Strategy,
    *,
    parameters: int,
    matrices: int | None,
    adapter: str,
    training: Training,
    each: float | None = None,
) -> int:
    """Device memory of weights that are not trained.

    Four bits are for the `matrices` (`experts.rounded_weights`; None: for all); embeddings and head keep 16. `each` is
    the size of the others where it is not what the strategy makes of them.
    """
    if strategy.partitions_weights and training.parameters_offloaded:
        return 0
    dense = each or (4 if strategy.frozen_in_fp32 else training.compute_bytes)
    total = four_bit_bytes(parameters, matrices, dense) if adapter == "qlora" else int(dense * parameters)
    return total // (training.world if strategy.partitions_weights else 1)


def four_bit_bytes(parameters: int, matrices: int | None, dense: float = 2) -> int:
    """Of a whole model whose `matrices` (None: all) are in four bits; each other number has `dense` bytes."""
    quantized = parameters if matrices is None else min(parameters, matrices)
    return int(_FOUR_BITS * quantized + dense * (parameters - quantized))


def dropped_features(model: Transformer | None, adapter: str, dropout: float | None, targets: str) -> int:
    """Features that enter a layer's matrices with adapters, for each of which dropout keeps a mask: on average.

    Routed experts have no dropout (TW564). Named layers that are not all of attention count as all linear ones.
    """
    if model is None or adapter == "none" or not dropout:
        return 0
    total = 0
    for block in model.blocks:
        each = 3 * model.hidden_size + block.query_size
        if not left_out(targets) and not block.joined_features:
            each += (2 if block.gated else 1) * model.hidden_size + block.intermediate_size
        total += block.count * each
    return total // model.num_hidden_layers
