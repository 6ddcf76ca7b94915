"""Matrix products in fp8: torchao's linear layers in place of PyTorch's, inside the repeated layers.

Inputs, weights and gradients are rounded to fp8 for each product, with a scale for each row or column, computed each
time (torchao's recipe "rowwise"). Everything else (weights, gradients, optimizer state) stays as with bf16. So do the
head, embeddings, and layers whose width is not a multiple of 16, which tensor cores do not support.
"""

from __future__ import annotations

import dataclasses
import os

from torch import nn

RECIPE = "rowwise"
MULTIPLE = 16
"""What both widths of a layer must be a multiple of, for fp8 on tensor cores. The number of tokens is padded."""


def use_fp8(model: nn.Module) -> None:
    """Make the trained linear layers multiply in fp8, and print how many. Exit if there are none."""
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
    """Return whether a layer benefits: for frozen weights, torchao would compute gradients that are not needed."""
    widths = (module.in_features, module.out_features)
    return module.weight.requires_grad and all(width % MULTIPLE == 0 for width in widths)
