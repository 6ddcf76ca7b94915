"""Matrix products in fp8: torchao's linear layers in place of PyTorch's, inside the repeated layers.

Inputs, weights and gradients are rounded to fp8 for each product, with a scale for each row or column that is found
anew each time (torchao's recipe "rowwise"). Weights, their gradients, the optimizer's state and all else stay as under
bf16, and so do the head, embeddings, and layers whose width is no multiple of 16, which the tensor cores cannot take.
"""

from __future__ import annotations

import dataclasses
import os

from torch import nn

RECIPE = "rowwise"
MULTIPLE = 16
"""Of both widths of a layer, for the products of fp8 on tensor cores. The number of tokens is padded."""


def use_fp8(model: nn.Module) -> None:
    """Let the linear layers that are trained multiply in fp8, and say how many. Exit if there are none."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = dataclasses.replace(Float8LinearConfig.from_recipe_name(RECIPE), pad_inner_dim=True)
    layers = [layer for part in model.modules() if isinstance(part, nn.ModuleList) for layer in part]
    inside = {module for layer in layers for module in layer.modules() if isinstance(module, nn.Linear)}
    chosen = {module for module in inside if suits(module)}
    if not chosen:
        raise SystemExit(f"fp8: none of the model's {len(inside)} linear layers can be trained in fp8; use bf16")
    convert_to_float8_training(model, config=recipe, module_filter_fn=lambda module, _: module in chosen)
    if os.environ.get("RANK", "0") == "0":
        print(f"fp8: {len(chosen)} of {len(inside)} linear layers multiply in fp8, the others in bf16", flush=True)


def suits(module: nn.Linear) -> bool:
    """Return whether a layer gains: of frozen weights, torchao would compute gradients that nobody needs."""
    widths = (module.in_features, module.out_features)
    return module.weight.requires_grad and all(width % MULTIPLE == 0 for width in widths)
