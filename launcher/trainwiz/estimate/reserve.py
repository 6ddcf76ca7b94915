"""From the tensors of a rank to what its GPU must have: the allocator's blocks, and what CUDA itself takes.

Tensors are what `torch.cuda.max_memory_allocated` counts; `max_memory_reserved` counts the blocks that they lie in;
nvidia-smi shows those and the CUDA context, the libraries' workspaces and NCCL's buffers. Fitted, see docs/forecast.md:
Qwen's table with one pair of numbers over 48 rows, and tried on rows of other sources.
"""

from __future__ import annotations

FILLED = 0.9
"""The part of a GPU that tensors may take; the CUDA context and gaps between blocks need the rest."""
RESERVED = 1.08
"""Blocks that the allocator holds, for each byte of tensors."""
_ON_DEVICE = 1.15
"""What is in use on the device, for each byte of tensors, without `CONTEXT`."""
CONTEXT = int(2.2 * 2**30)
"""The CUDA context with its kernels, and the libraries' workspaces."""
NCCL = 2**30
"""The buffers of NCCL's communicators, where there are several ranks: 0.2 to 1 GiB."""


def reserved_bytes(tensors: int) -> float:
    """What the allocator holds at the peak."""
    return RESERVED * tensors


def device_bytes(tensors: int, *, ranks: int = 1) -> float:
    """What nvidia-smi shows after the peak."""
    return _ON_DEVICE * tensors + CONTEXT + (NCCL if ranks > 1 else 0)
