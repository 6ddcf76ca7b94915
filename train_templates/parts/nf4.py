"""Tensors in 4 bits (NF4, https://arxiv.org/abs/2305.14314) as bytes: the numbers and their scales in one.

bitsandbytes makes and reads them. It keeps the scales beside the numbers; here they follow them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from bitsandbytes.functional import QuantState, quantize_4bit, quantize_blockwise
from torch import Tensor

BLOCK = 64  # numbers that share a scale of 8 bits
SCALES = 256  # scales that share one in fp32
ALIGNED = 16  # bytes that a part begins at a multiple of, for the kernels that read it
AT_ONCE = 1 << 30  # numbers of a call: bitsandbytes counts them in 32 bits, and a layer's experts may be more


def sizes(count: int) -> list[int]:
    """Return the bytes of the parts of `count` numbers: the numbers, their scales, the scales of these, their mean."""
    blocks = -(-count // BLOCK)
    exact = -(-count // 2), blocks, 4 * -(-blocks // SCALES), 4
    return [-(-size // ALIGNED) * ALIGNED for size in exact]


def pack(matrix: Tensor) -> Tensor:
    """Return the bytes of a matrix in 4 bits."""
    return laid_out(*quantized(matrix))


def laid_out(numbers: Tensor, state: Any) -> Tensor:
    """Return the bytes of what bitsandbytes has quantized."""
    parts = numbers, state.absmax, state.state2.absmax, state.offset.float()
    lengths = sizes(math.prod(state.shape))
    packed = torch.zeros(sum(lengths), dtype=torch.uint8, device=numbers.device)
    for place, part in zip(packed.split(lengths), parts, strict=True):
        own = part.contiguous().reshape(-1).view(torch.uint8)
        place[: len(own)] = own
    return packed


def quantized(matrix: Tensor) -> tuple[Tensor, Any]:
    """Return a matrix as bitsandbytes quantizes it for QLoRA; a large one in parts, to the same bytes."""
    if matrix.numel() <= AT_ONCE:
        return quantize_4bit(matrix, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
    parts = [
        quantize_4bit(part, blocksize=BLOCK, compress_statistics=False, quant_type="nf4")
        for part in matrix.reshape(-1).split(AT_ONCE)
    ]
    state = parts[-1][1]
    state.shape, scales = matrix.shape, torch.cat([each.absmax for _, each in parts])
    state.offset = scales.mean()
    state.absmax, state.state2 = quantize_blockwise(scales - state.offset, blocksize=SCALES)
    return torch.cat([numbers for numbers, _ in parts]), state


def unpack(parts: tuple[Tensor, ...], shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, QuantState]:
    """Return the numbers and their state for bitsandbytes, around the memory of the parts."""
    numbers, absmax, second, offset = parts
    count, (code, second_code) = math.prod(shape), codes(numbers.device)
    blocks = -(-count // BLOCK)
    nested = QuantState(
        absmax=second.view(torch.float32)[: -(-blocks // SCALES)],
        blocksize=SCALES,
        code=second_code,
        dtype=torch.float32,
    )
    state = QuantState(
        absmax=absmax[:blocks],
        shape=torch.Size(shape),
        code=code,
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=dtype,
        offset=offset.view(torch.float32)[0],
        state2=nested,
    )
    return numbers[: -(-count // 2)].view(-1, 1).t(), state


@functools.cache
def codes(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the values that numbers stand for, and scales: the same for all matrices."""
    state = quantized(torch.ones(BLOCK, device=device))[1]
    return state.code, state.state2.code
