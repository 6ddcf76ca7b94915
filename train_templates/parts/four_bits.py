"""Frozen matrices in 4 bits (NF4, https://arxiv.org/abs/2305.14314) that FSDP2 can shard.

bitsandbytes keeps the scales of a matrix beside its parameter, where FSDP2 does not see them. Here a matrix is a single
parameter, which holds its numbers and its scales as bytes: each rank keeps its part of them, and FSDP2 gathers a
layer's bytes just before the layer computes. What is computed is what bitsandbytes computes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from bitsandbytes import matmul_4bit
from bitsandbytes.functional import QuantState, quantize_4bit
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

BLOCK = 64  # numbers that share a scale of 8 bits
SCALES = 256  # scales that share one in fp32
ALIGNED = 16  # bytes that a part begins at a multiple of, for the kernels that read it


class Matrix(nn.Linear):
    """A linear layer whose frozen weight has 4 bits. It computes in `compute`, and returns the type of its inputs."""

    def __init__(self, layer: nn.Module, compute: torch.dtype) -> None:
        """Take the place of a layer. The bytes are not written yet: that needs `packed`."""
        nn.Module.__init__(self)
        weight: Any = layer.weight
        self.turned = isinstance(layer, Conv1D)  # GPT-2's, whose weights are saved with their inputs first
        self.saved_shape = weight.shape
        self.out_features, self.in_features = reversed(weight.shape) if self.turned else weight.shape
        self.numbers, self.compute = weight.dtype, compute
        size = sum(sizes(self.in_features * self.out_features))
        packed = torch.empty(size, dtype=torch.uint8, device=weight.device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias: Any = layer.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)

    def packed(self, weight: Tensor, device: torch.device) -> Tensor:
        """Return the bytes of a weight as it is saved; this is where it is rounded to 4 bits, on the device."""
        whole = weight.to(device, self.numbers)
        return pack((whole.T if self.turned else whole).contiguous())

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply with what bitsandbytes makes of the bytes."""
        parts = self.weight.view(torch.uint8).split(sizes(self.in_features * self.out_features))
        numbers, state = unpack(parts, (self.out_features, self.in_features), self.numbers)
        bias = None if self.bias is None else self.bias.to(self.compute)
        return matmul_4bit(inputs.to(self.compute), numbers, quant_state=state, bias=bias).to(inputs.dtype)


def sizes(count: int) -> list[int]:
    """Return the bytes of the parts of `count` numbers: the numbers, their scales, the scales of these, their mean."""
    blocks = -(-count // BLOCK)
    exact = -(-count // 2), blocks, 4 * -(-blocks // SCALES), 4
    return [-(-size // ALIGNED) * ALIGNED for size in exact]


def pack(matrix: Tensor) -> Tensor:
    """Return the bytes of a matrix in 4 bits."""
    numbers, state = quantized(matrix)
    parts = numbers, state.absmax, state.state2.absmax, state.offset.float()
    packed = torch.zeros(sum(sizes(matrix.numel())), dtype=torch.uint8, device=matrix.device)
    for place, part in zip(packed.split(sizes(matrix.numel())), parts, strict=True):
        own = part.reshape(-1).view(torch.uint8)
        place[: len(own)] = own
    return packed


def quantized(matrix: Tensor) -> tuple[Tensor, Any]:
    """Return a matrix as bitsandbytes quantizes it for QLoRA."""
    return quantize_4bit(matrix, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")


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


def replace(model: Any, spared: list[str], compute: torch.dtype) -> None:
    """Put a `Matrix` in the place of each linear layer that transformers would give bitsandbytes, but for the spared.

    Where the layers have numbers, they are packed one by one, on the device of this rank.
    """
    from accelerate import PartialState

    left_out = [*spared, *(getattr(model, "_keep_in_fp32_modules", None) or ())]
    for name, layer in list(model.named_modules()):
        linear = type(layer) is nn.Linear or isinstance(layer, Conv1D)
        if not linear or any(f".{part}." in f".{name}." for part in left_out):
            continue
        matrix = Matrix(layer, compute)
        if not matrix.weight.is_meta:
            matrix.weight.data = matrix.packed(layer.weight.detach(), PartialState().device).cpu()
        model.set_submodule(name, matrix)


def matrices(model: nn.Module) -> Iterator[tuple[str, Matrix]]:
    """Yield the matrices of a model with the names of their parameters."""
    for name, module in model.named_modules():
        if isinstance(module, Matrix):
            yield f"{name}.weight", module


def as_numbers(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the bytes pass for numbers of the type that FSDP2 gathers, which it does not cast."""
    for _, matrix in matrices(model):
        matrix.weight = nn.Parameter(matrix.weight.detach().view(dtype), requires_grad=False)
