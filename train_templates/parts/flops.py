"""The FLOPs that a language model needs for a micro-batch, from which its MFU (model FLOPs utilization) follows.

Each weight in a matrix product takes 2 FLOPs per token forward and 4 backward (2 if it is not trained), and attention
takes 12 × width × the tokens of the document (PaLM, appendix B, https://arxiv.org/abs/2204.02311). Padding does not
count, nor does what is computed again to save memory. Everything is counted on the host.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention import shapes_of

# feature: packed_experts
from experts import Packed

# end: packed_experts
PEAK_TFLOPS: dict[str, float] = {"h200": 989.0}
"""Dense TFLOP/s of GPUs in the precision of this training, by a pattern of their names; from their data sheets."""
IGNORED = -100


def peak() -> float | None:
    """Return the FLOP/s that this GPU could do; None if it is not listed, or if a rehearsal trains on the CPU."""
    if not torch.cuda.is_available():
        return None
    name = re.sub(r"[\s_-]|nvidia|geforce|rtx|tesla|amd|instinct", "", torch.cuda.get_device_name().lower())
    return next((1e12 * rate for pattern, rate in PEAK_TFLOPS.items() if re.match(pattern, name)), None)


def share_of_peak(model: nn.Module) -> Callable[[dict[str, Tensor]], float] | None:
    """Return a function from a micro-batch to its FLOPs as a share of a second of this GPU; None for an unknown GPU."""
    fastest = peak()
    if fastest is None:
        return None
    per_token, per_pair = flops_per_token(model), flops_per_pair(model)
    return lambda batch: needed(batch, per_token, per_pair) / fastest


def needed(batch: dict[str, Tensor], per_token: float, per_pair: list[tuple[float, int]]) -> float:
    """Return the FLOPs of a micro-batch on the host."""
    learned, size = batch["labels"] != IGNORED, batch["labels"].shape[1]
    place = torch.arange(size)
    # Everything after the last learned token of a row is padding.
    used = place < torch.where(learned, place + 1, 0).amax(1, keepdim=True)
    position = batch.get("positions", place.expand_as(used))[used]
    # A document of n tokens has n² pairs: 1 + 3 + 5 + … for its tokens in turn.
    pairs = (flops * (2 * position.clamp(max=window - 1) + 1).sum().item() for flops, window in per_pair)
    return per_token * len(position) + sum(pairs)


def flops_per_token(model: Any) -> float:
    """Return the FLOPs of all matrix products with weights, forward and backward, of one token."""
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    routed = next((getattr(config, name) for name in EXPERTS if getattr(config, name, None)), 0)
    active = getattr(config, "num_experts_per_tok", routed) / routed if routed else 1.0
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    # What shards or quantizes a weight leaves it another shape than that of its products.
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    shapes: dict[int, tuple[int, ...]] = {id(part.weight): (part.out_features, part.in_features) for part in linear}
    # feature: packed_experts
    for part in model.modules():
        if isinstance(part, Packed):
            shapes |= {id(part.get_parameter(name)): tuple(shape) for name, shape in part.shapes.items()}
    # end: packed_experts
    total = sum(products(weight, shapes.get(id(weight))) for weight in head.parameters())
    text = getattr(model.base_model, "language_model", model.base_model)  # without the part that reads pictures
    for name, weight in text.named_parameters():
        if id(weight) not in tables:
            total += products(weight, shapes.get(id(weight))) * (active if ".experts." in name else 1)
    return total


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def products(weight: Any, packed: tuple[int, ...] | None = None) -> float:
    """Return the FLOPs of one token with a weight, whose own shape may be another one: 0 for a vector."""
    shape = packed or getattr(weight, "ds_shape", weight.shape)  # DeepSpeed has sharded it
    return (6 if weight.requires_grad else 4) * math.prod(shape) if len(shape) > 1 else 0


def flops_per_pair(model: Any) -> list[tuple[float, int]]:
    """Return the FLOPs of attention for a pair of tokens, and its reach in tokens, for each kind of layer."""
    config = model.config.get_text_config()
    layers = [6.0 * shape.heads * (shape.width + shape.values) for shape in shapes_of(config)]
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(layers)
    window = getattr(config, "sliding_window", None) or EVERYTHING
    reach = {"full_attention": EVERYTHING, "sliding_attention": window}
    by_kind = [(kind, sum(flops for flops, own in zip(layers, kinds, strict=False) if own == kind)) for kind in reach]
    return [(flops, reach[kind]) for kind, flops in by_kind if flops]


EVERYTHING = 1 << 40
