"""Frozen matrices in 4 bits (NF4, https://arxiv.org/abs/2305.14314) that FSDP2 can shard.

bitsandbytes keeps the scales of a matrix beside its parameter, where FSDP2 does not see them. Here a matrix is a single
parameter, which holds its numbers and its scales as bytes: each rank keeps its part of them, and FSDP2 gathers a
layer's bytes just before the layer computes. What is computed is what bitsandbytes computes. Models whose files have
4 bits already keep those numbers and scales.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from bitsandbytes import matmul_4bit
from bitsandbytes.functional import QuantState
from bitsandbytes.nn import Linear4bit
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from experts import Packed
from nf4 import BLOCK, SCALES, codes, laid_out, pack, sizes, unpack

STATE = "quant_state.bitsandbytes__nf4"  # what bitsandbytes saves beside a matrix, with its scales
BESIDE = ("absmax", "nested_absmax", "quant_map", "nested_quant_map", STATE)


class Matrix(nn.Linear):
    """A linear layer whose frozen weight has 4 bits. It computes in `compute`, and returns the type of its inputs."""

    def __init__(self, layer: nn.Module, compute: torch.dtype) -> None:
        """Take the place of a layer. The bytes are not written yet: that needs `packed`."""
        nn.Module.__init__(self)
        weight: Any = layer.weight
        state = getattr(weight, "quant_state", None)  # of a layer of bitsandbytes
        self.turned = isinstance(layer, Conv1D)  # GPT-2's, whose weights are saved with their inputs first
        self.saved_shape = weight.shape if state is None else state.shape
        self.out_features, self.in_features = reversed(self.saved_shape) if self.turned else self.saved_shape
        self.numbers, self.compute = weight.dtype if state is None else state.dtype, compute
        self.published = ""  # the name of a weight whose files have 4 bits
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


def without_quantization(shape: Any, name: str) -> bool:
    """Take the quantization out of a model's configuration: that of its layers is `Matrix`. Return whether it had one.

    Exit unless it is what `Matrix` holds: NF4, whose scales are quantized, too.
    """
    told = shape.__dict__.pop("quantization_config", None)
    if told is None:
        return False
    settings = told if isinstance(told, dict) else told.to_dict()
    kind = settings.get("bnb_4bit_quant_type") if settings.get("load_in_4bit") else settings.get("quant_method")
    if kind != "nf4" or not settings.get("bnb_4bit_use_double_quant"):
        raise SystemExit(
            f"{name} is quantized already, by {kind or 'an unknown method'}; FSDP2 needs its weights in 16 bits, which "
            "are quantized here, or in nf4 with double quantization"
        )
    return True


def replace_published(
    model: Any, name: str, saved: Iterable[str], read: Callable[[str], Tensor], compute: torch.dtype
) -> None:
    """Put a `Matrix` in the place of each layer whose weight the files of a model have in 4 bits. Exit if one has none.

    `saved` are the names of all tensors in the files, and `read` reads one of them.
    """
    states = {key.removesuffix(f".weight.{STATE}"): key for key in saved if key.endswith(f".weight.{STATE}")}
    for own, layer in list(model.named_modules()):
        known = next((key for key in (own, own.removeprefix(f"{model.base_model_prefix}.")) if key in states), None)
        if known is None:
            continue
        state = json.loads(bytes(read(states.pop(known)).tolist()))
        matrix = Matrix(layer, compute)
        matrix.published, matrix.numbers = f"{known}.weight", getattr(torch, state["dtype"])
        refuse_other_blocks(name, state["blocksize"], state["nested_blocksize"])
        if tuple(state["shape"]) != (matrix.out_features, matrix.in_features):
            raise SystemExit(f"{name}: its 4 bits are not those that FSDP2 shards: {own} is {state['shape']} there")
        model.set_submodule(own, matrix)
    if states:
        raise SystemExit(
            f"{name}: the model has no layers for {len(states)} weights in 4 bits ({next(iter(states))}): it is loaded "
            "under other names than it is saved, and can be sharded only if its files have 16 bits"
        )


def published(matrix: Matrix, read: Callable[[str], Tensor]) -> Tensor:
    """Return the bytes of a weight whose files have 4 bits."""
    beside = {part: read(f"{matrix.published}.{part}") for part in BESIDE}
    state = QuantState.from_dict(beside, device=torch.device("cpu"))
    return laid_out(read(matrix.published), same_codes(matrix.published, state))


def same_codes(name: str, state: Any) -> Any:
    """Return a state. Exit if its numbers stand for other values than those of this bitsandbytes."""
    for saved, own in zip((state.code, state.state2.code), codes(state.code.device), strict=True):
        if not torch.allclose(saved, own, rtol=1e-5, atol=1e-7):
            raise SystemExit(f"{name}: its 4 bits are not those that FSDP2 shards: they stand for other values")
    return state


def refuse_other_blocks(name: str, own: int, nested: int) -> None:
    """Exit if scales are shared by other numbers of numbers than here."""
    if (own, nested) != (BLOCK, SCALES):
        raise SystemExit(f"{name}: its 4 bits are not those that FSDP2 shards: {own}, {nested} numbers share a scale")


def take_over(model: Any, compute: torch.dtype) -> None:
    """Put a `Matrix` in the place of each layer that bitsandbytes has loaded. The model then passes for a usual one."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Linear4bit):
            weight: Any = layer.weight
            state = same_codes(name, weight.quant_state)
            refuse_other_blocks(name, state.blocksize, state.state2.blocksize)
            matrix = Matrix(layer, compute)
            matrix.weight.data = laid_out(weight.data, state)
            model.set_submodule(name, matrix)
    for told in ("is_loaded_in_4bit", "is_quantized", "hf_quantizer", "quantization_method", "hf_device_map"):
        model.__dict__.pop(told, None)
    model.config.__dict__.pop("quantization_config", None)


def matrices(model: nn.Module) -> Iterator[tuple[str, Matrix]]:
    """Yield the matrices of a model with the names of their parameters."""
    for name, module in model.named_modules():
        if isinstance(module, Matrix):
            yield f"{name}.weight", module


def as_numbers(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the bytes pass for numbers of the type that FSDP2 gathers, which it does not cast."""
    for _, matrix in matrices(model):
        matrix.weight = nn.Parameter(matrix.weight.detach().view(dtype), requires_grad=False)
    for packed in model.modules():
        if isinstance(packed, Packed):
            packed.compute = dtype
            for name in packed.shapes:
                bytes_of = packed.get_parameter(name).detach().view(dtype)
                packed.register_parameter(name, nn.Parameter(bytes_of, requires_grad=False))
