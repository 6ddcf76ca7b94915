"""The model, held in memory by rank 0 alone until the engine has sharded it over all ranks.

The other ranks build the same model around memory that nothing was written to, which takes no space. `prepare` sends
each rank its shards, from rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from accelerate import Accelerator, init_empty_weights
from torch import nn

empty = False  # whether this rank builds the model without its weights


def loader(auto_class: Any) -> Callable[..., Any]:
    """Return the class's `from_pretrained`; where rank 0 has the weights, one that reads config.json alone."""

    def load(name: str, *, dtype: torch.dtype, attn_implementation: str | None = None, **options: Any) -> Any:
        if not empty:
            return auto_class.from_pretrained(name, dtype=dtype, attn_implementation=attn_implementation, **options)
        shape = transformers.AutoConfig.from_pretrained(name, **options)
        return auto_class.from_config(shape, dtype=dtype, attn_implementation=attn_implementation)

    return load


def build(accelerator: Accelerator, build_model: Callable[[], Any]) -> Any:
    """Return the model: with its weights on rank 0, with memory for them elsewhere. Buffers are real on all ranks."""
    global empty
    empty = not accelerator.is_main_process
    if not empty:
        return build_model()
    with init_empty_weights():
        model = build_model()
    empty = False
    model.tie_weights()
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in shared:
                memory = torch.empty_like(parameter, device="cpu")
                shared[parameter] = nn.Parameter(memory, requires_grad=parameter.requires_grad)
            setattr(module, name, shared[parameter])
    return model


def prepare(accelerator: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Shard both. Buffers of the state dict stay out of it meanwhile, since accelerate sends parameters only."""
    saved = [
        (module, name)
        for module in model.modules()
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    ]
    for module, name in saved:
        module.register_buffer(name, module._buffers[name], persistent=False)
    accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = True
    model, optimizer = accelerator.prepare(model, optimizer)
    for module, name in saved:
        module.register_buffer(name, module._buffers[name])
    return model, optimizer
