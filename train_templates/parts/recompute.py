"""Activation checkpointing: layers keep little of the forward pass, and compute the rest again for the backward pass.

The gradient is the same to the last bit, dropout included.
"""

from __future__ import annotations

import functools

# feature: offload
from collections.abc import Callable
# end: offload

# feature: selective
from typing import Any

# end: selective
# feature: offload
from typing import Any

import torch
from torch import Tensor, nn

# end: offload
# feature: kept_on_device
from torch import nn

# end: kept_on_device
from torch.utils.checkpoint import checkpoint

# feature: selective
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# end: selective


def repeated_layers(model: nn.Module, class_names: tuple[str, ...]) -> list[nn.Module]:
    """Return the layers of these classes; without names, the members of the outermost module lists."""
    if class_names:
        return [module for module in model.modules() if type(module).__name__ in class_names]
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inner = {module for outer in lists for module in outer.modules() if module is not outer}
    return [layer for outer in lists if outer not in inner for layer in outer]


def recomputable(model: nn.Module, class_names: tuple[str, ...]) -> list[nn.Module]:
    """Return the repeated layers. Exit if there are none, or if computing them twice would change them."""
    layers = repeated_layers(model, class_names)
    if not layers:
        raise SystemExit("no layer to recompute; name the class of the repeated layers in SHARDED_LAYERS of task.py")
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for layer in layers for part in layer.modules()):
        raise SystemExit("BatchNorm would count each batch twice in layers that are computed again; use GroupNorm")
    return layers


# feature: selective
KEPT = {
    *("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "convolution"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    *("_varlen_attn", "_flash_attn_forward", "_flash_attn_varlen_forward", "flex_attention"),
}
"""Names of the operators whose results are kept: they take nearly all of a layer's time."""
OF_EXPERTS = {"_grouped_mm", "bmm"}
"""Those that transformers' experts add their biases to in place (GPT-OSS), which a kept result must not be."""


def kept_of(layer: nn.Module) -> set[str]:
    """Return the names of the operators of a layer whose results are kept."""
    return KEPT - OF_EXPERTS if any(getattr(part, "has_bias", False) for part in layer.modules()) else KEPT


def policy(kept: set[str], _context: Any, operator: Any, *_arguments: Any, **_options: Any) -> CheckpointPolicy:
    """Return whether an operator's result is kept."""
    name = operator.__name__.partition(".")[0]  # of mm.default, for example
    return CheckpointPolicy.MUST_SAVE if name in kept else CheckpointPolicy.PREFER_RECOMPUTE


# end: selective
# feature: full
def recompute_layers(model: nn.Module, class_names: tuple[str, ...]) -> None:
    """Make each repeated layer keep only its input, and compute itself again in the backward pass."""
    for layer in recomputable(model, class_names):
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


# end: full
# feature: offload
def recompute_layers(model: nn.Module, class_names: tuple[str, ...]) -> None:
    """Make each repeated layer keep only its input, in host memory, and compute itself again in the backward pass."""
    for layer in recomputable(model, class_names):
        layer.forward = functools.partial(compute_again, layer.forward)


def compute_again(forward: Callable[..., Any], /, *inputs: Any, **named: Any) -> Any:
    """Compute a layer whose first tensor waits in host memory for the layer to be computed again."""
    name = None if inputs else next((name for name, value in named.items() if isinstance(value, Tensor)), None)
    if name is not None:  # `checkpoint` keeps named inputs as they are
        inputs, forward = (named.pop(name),), functools.partial(called_by_name, forward, name)
    place = next((value.data_ptr() for value in inputs if isinstance(value, Tensor)), None)
    with torch.autograd.graph.saved_tensors_hooks(functools.partial(to_host, place), from_host):
        return checkpoint(forward, *inputs, use_reentrant=False, **named)


def called_by_name(forward: Callable[..., Any], name: str, value: Any, /, **named: Any) -> Any:
    """Compute a layer that is given its first input by name."""
    return forward(**{name: value}, **named)


def to_host(place: int | None, tensor: Tensor) -> Tensor | tuple[Tensor, torch.device]:
    """Return a pinned copy of the tensor at a place. Others (masks, positions) are shared by all layers, and stay."""
    if tensor.data_ptr() != place:
        return tensor
    # The copy is queued behind the kernels that made the tensor, and before those that may reuse its memory.
    copied = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return copied.copy_(tensor, non_blocking=True), tensor.device


def from_host(kept: Tensor | tuple[Tensor, torch.device]) -> Tensor:
    """Return the tensor on its device."""
    return kept if isinstance(kept, Tensor) else kept[0].to(kept[1], non_blocking=True)


# end: offload
# feature: selective
def recompute_layers(model: nn.Module, class_names: tuple[str, ...]) -> None:
    """Make each repeated layer keep its input and what `KEPT` computed, and the rest be computed again."""
    for layer in recomputable(model, class_names):
        own = functools.partial(policy, kept_of(layer))
        kept = functools.partial(create_selective_checkpoint_contexts, own)
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, context_fn=kept)


# end: selective
