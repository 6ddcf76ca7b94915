"""The summed cross-entropy of a language model's head, whose gradients are computed together with the loss.

The logits of a micro-batch (tokens × vocabulary) are never in memory all at once, and no product is computed twice:
each chunk of tokens gives its part of the loss and of both gradients, which the backward pass only scales.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100


class HeadLoss(torch.autograd.Function):
    """The sum of the cross-entropy over the labels that count, of hidden (tokens, width) and weight (words, width)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int) -> Tensor:
        device, used = hidden.device.type, hidden
        if torch.is_autocast_enabled(device):
            used = hidden.to(torch.get_autocast_dtype(device))
        matrix = weight.to(used.dtype)
        to_hidden = torch.empty_like(used)
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = []
        for part, wanted, gradient in zip(used.split(chunk), labels.split(chunk), to_hidden.split(chunk), strict=True):
            loss, errors = loss_and_errors(nn.functional.linear(part, matrix), wanted)
            losses.append(loss)
            torch.mm(errors, matrix, out=gradient)
            if to_weight is not None and to_weight.dtype == errors.dtype:
                to_weight.addmm_(errors.t(), part)
            elif to_weight is not None:
                to_weight += errors.t() @ part  # of 16 bits each, summed in 32
        ctx.gradients = (to_hidden, to_weight, hidden.dtype)
        return sum(losses)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (to_hidden, to_weight, dtype), ctx.gradients = ctx.gradients, None  # changed in place, so only once
        return to_hidden.mul_(scale).to(dtype), None if to_weight is None else to_weight.mul_(scale), None, None


# feature: uncompiled_loss
def loss_and_errors(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a chunk, in fp32 or fp64, and its gradient with regard to the logits, in their type."""
    exact = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(1)
    loss = nn.functional.nll_loss(exact, wanted, ignore_index=IGNORED, reduction="sum")
    exact.exp_()[torch.arange(len(wanted), device=wanted.device), wanted.clamp(min=0)] -= 1
    exact *= (wanted != IGNORED)[:, None]
    return loss, exact.to(logits.dtype)


# end: uncompiled_loss
# feature: compiled_loss
@torch.compile
def loss_and_errors(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a chunk, in fp32 or fp64, and its gradient with regard to the logits, in their type.

    Nothing is changed in place, so that all of it becomes one kernel.
    """
    exact = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(1)
    is_wanted = torch.arange(logits.shape[1], device=logits.device) == wanted[:, None]
    loss = -exact.where(is_wanted, 0).sum()
    errors = (exact.exp() - is_wanted.to(exact.dtype)).where((wanted != IGNORED)[:, None], 0)
    return loss, errors.to(logits.dtype)


# end: compiled_loss
def can_be_fused(head: nn.Module) -> bool:
    """Return whether the head is one plain matrix, without an adapter, quantization or sharding of its own."""
    return torch.is_grad_enabled() and type(head) is nn.Linear and head.bias is None
