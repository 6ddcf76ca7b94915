"""Adapters on the routed experts of a layer, which are one tensor and no linear layers.

Counted in `ParamWrapper` of peft 0.21 and the experts of transformers 5.23: peft adds the product of an adapter's
matrices to the whole tensor, and each layer keeps the sum for its backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz.models import Transformer
from trainwiz.models.adapted import EVERYWHERE

if TYPE_CHECKING:
    from trainwiz.strategies import Strategy

_OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")


def left_out(targets: str) -> bool:
    """Whether the layers that an adapter is for (`model.lora_targets`) are those of attention alone."""
    return targets != EVERYWHERE and all(name.strip() in _OF_ATTENTION for name in targets.split(","))


# docs/decisions/tasks.md: Experts are packed as they are read
def rounded_weights(strategy: Strategy, model: Transformer) -> int:
    """Weights that QLoRA rounds to four bits: those of linear layers, and of routed experts where they are packed.

    The routers, a thousandth of these, stay in 16 bits, and are counted with their experts.
    """
    return model.linear_weights + (model.joined_weights if strategy.packs_experts else 0)


def joined(model: Transformer) -> int:
    """The weights of the routed experts of a layer, which are whole together where packed."""
    return max((block.joined_weights for block in model.blocks), default=0)


def widest(model: Transformer) -> int:
    """The weights of the largest tensor of a layer, or of its routed experts."""
    return max(model.largest_matrix, joined(model))


# docs/decisions/tasks.md: The sum of experts and their adapter is counted
def saved_bytes(model: Transformer, number: int) -> int:
    """What all layers keep of a forward pass: experts with their adapters added, however many tokens there are."""
    return number * sum(block.count * block.joined_weights for block in model.blocks if block.joined_features)


def layer_bytes(model: Transformer, number: int) -> int:
    """The same of the largest layer."""
    return number * max((block.joined_weights for block in model.blocks if block.joined_features), default=0)
