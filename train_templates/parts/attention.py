"""The shape of attention in each layer of a model, and whether a kernel gives the same result for it as a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Shape(NamedTuple):
    """The shape of one layer's attention."""

    heads: int
    shared: int  # heads of keys and values
    width: int  # of queries and keys
    values: int  # the width of values, which differs in DeepSeek's attention


def shapes_of(config: Any) -> list[Shape]:
    """Return the shape in each layer; in Gemma 4, layers with a window differ from those without one."""
    # In transformers 5.23, a configuration refuses to name what differs among its layers.
    layers = getattr(config, "per_layer_config", None) or [config] * config.num_hidden_layers
    return [shape_of(layer) for layer in layers]


def shape_of(layer: Any) -> Shape:
    """Return the shape that the configuration of one layer describes."""
    heads = layer.num_attention_heads
    # DeepSeek's `head_dim` is the part of a head that is rotated.
    width = getattr(layer, "qk_head_dim", None) or getattr(layer, "head_dim", None) or layer.hidden_size // heads
    shared = getattr(layer, "num_key_value_heads", None) or heads
    return Shape(heads, shared, width, getattr(layer, "v_head_dim", None) or width)


def agrees(attend: Callable[..., Tensor], shape: Shape, begin: Tensor) -> bool:
    """Return whether a kernel gives the same outputs and gradients as a mask. The kernel's exceptions are passed on.

    `attend` returns (1, positions, heads, width); `begin` says where each position's document begins.
    """
    place, device = torch.arange(len(begin), device=begin.device), begin.device
    kind = half_of(device)
    sizes = ((shape.heads, shape.width), (shape.shared, shape.width), (shape.shared, shape.values))
    some = [torch.randn(1, n, len(begin), width, device=device).to(kind).requires_grad_() for n, width in sizes]
    plain = [part.detach().float().requires_grad_() for part in some]
    mask = (begin[:, None] == begin) & (place[:, None] >= place)
    wanted = nn.functional.scaled_dot_product_attention(*plain, mask, enable_gqa=True).transpose(1, 2)
    found = attend(*some)
    found_all = (found, *torch.autograd.grad(found.float().square().sum(), some))
    wanted_all = (wanted, *torch.autograd.grad(wanted.square().sum(), plain))
    return all(is_near(*pair) for pair in zip(found_all, wanted_all, strict=True))


def half_of(device: torch.device) -> torch.dtype:
    """Return the type of 16 bits that kernels can compute with: before Ampere, PyTorch emulates bfloat16 by itself."""
    bf16 = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if bf16 else torch.float16


def is_near(found: Tensor, wanted: Tensor) -> bool:
    """Return whether they differ only by rounding to 16 bits."""
    return found.shape == wanted.shape and bool((found.float() - wanted).norm() < 0.05 * wanted.norm())
