"""Norms, gated MLPs and rotary positions in one kernel of liger-kernel each, instead of several operators.

They compute the same up to rounding. The loss stays that of head_loss.py: liger's waits for the device twice in each
micro-batch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import Tensor, nn

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` in config.json whose layers liger was seen to compute like transformers."""


def use_kernels(model: Any) -> None:
    """Make the layers of a transformers model compute with liger's kernels. Print why if they cannot."""
    if why := obstacle(model.config):
        if os.environ.get("RANK", "0") == "0":
            print(f"liger-kernel is not used: {why}", flush=True)
        return
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    module = sys.modules[type(model).__module__]
    own = dict(vars(module))
    _apply_liger_kernel_to_instance(model=model, cross_entropy=False, fused_linear_cross_entropy=False)
    fused, plain = vars(module).get("apply_rotary_pos_emb"), own.get("apply_rotary_pos_emb")
    # A model that is built later, to generate a sample, may be on the CPU, where these kernels do not run.
    vars(module).update(own)

    def rotate(query: Tensor, key: Tensor, cos: Tensor, *arguments: Any, **options: Any) -> Any:
        # liger's kernel rotates whole heads; some models (Phi-4-mini) rotate only a part of each.
        whole = cos.shape[-1] == query.shape[-1]
        return (fused if whole and on_gpu(query) else plain)(query, key, cos, *arguments, **options)

    if fused is not plain:
        module.apply_rotary_pos_emb = rotate


def on_gpu(tensor: Tensor) -> bool:
    """Return whether liger's kernels can compute with a tensor."""
    return tensor.is_cuda


def obstacle(config: Any) -> str:
    """Return why the kernels cannot be used for models with a configuration; empty if they can."""
    family = config.model_type
    if family not in FAMILIES:
        return f"its layers were not tested with models of type {family}"
    wanted = "gelu_pytorch_tanh" if family.startswith("gemma") else "silu"
    if (activation := getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", wanted)) != wanted:
        return f"its gated MLPs compute {wanted}, and the model's {activation}"
    if not torch.cuda.is_available():
        return "its kernels run on GPUs only"
    try:
        from liger_kernel.transformers import LigerRMSNorm

        difference = kernel_error(LigerRMSNorm)
    except Exception as error:  # it is not installed, or Triton or its compiler does not work
        return f"{type(error).__name__}: {error}"[:300]
    return "" if difference < 1e-4 else f"its norm differs from PyTorch's by {difference:.1e} here"


def kernel_error(norm: Any, device: str = "cuda") -> float:
    """Return by how much the norm and its gradient differ from PyTorch's own, relative to these."""
    given = torch.randn(8, 256, device=device)
    found = []
    for layer in (norm(256, eps=1e-6), nn.RMSNorm(256, eps=1e-6)):
        layer.to_empty(device=device)  # also where FSDP gives new parameters no memory
        nn.init.ones_(layer.weight)
        hidden = given.clone().requires_grad_()
        result = layer(hidden)
        result.square().sum().backward()
        found.append(torch.cat((result.detach(), hidden.grad, layer.weight.grad[None])))
    ours, theirs = found
    return float((ours - theirs).norm() / theirs.norm())
