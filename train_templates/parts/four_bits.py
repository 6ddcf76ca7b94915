"""Frozen matrices in 4 bits (NF4, https://arxiv.org/abs/2305.14314) that FSDP2 can shard.

bitsandbytes keeps the scales of a matrix beside its parameter, where FSDP2 does not see them. Here a matrix is a single
parameter, which holds its numbers and its scales as bytes: each rank keeps its part of them, and FSDP2 gathers a
layer's bytes just before the layer computes. What is computed is what bitsandbytes computes. Models whose files have
4 bits already keep those numbers and scales. Of a mixture, the experts of a layer are one tensor, which bitsandbytes
does not know: it is packed in the same way, and whole only while the layer computes.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from bitsandbytes import matmul_4bit
from bitsandbytes.functional import QuantState, dequantize_4bit, dequantize_blockwise, quantize_4bit
from bitsandbytes.nn import Linear4bit
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

BLOCK = 64  # numbers that share a scale of 8 bits
SCALES = 256  # scales that share one in fp32
ALIGNED = 16  # bytes that a part begins at a multiple of, for the kernels that read it
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


class Packed(nn.Module):
    """The tensors of a layer's routed experts in four bits, under their names."""

    def __init__(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Round tensors on a device. Those that have no numbers get bytes that have none."""
        super().__init__()
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.numbers = self.compute = next(iter(tensors.values())).dtype
        for name, tensor in tensors.items():
            size = sum(sizes(tensor.numel()))
            bytes_of = torch.empty(size, dtype=torch.uint8, device=tensor.device)
            if not tensor.is_meta:
                bytes_of = pack(tensor.detach().to(device).contiguous()).cpu()
            self.register_parameter(name, nn.Parameter(bytes_of, requires_grad=False))

    def whole(self, name: str) -> Tensor:
        """Return a tensor as it is computed with."""
        return self.unpacked(name, 0, self.shapes[name].numel()).view(self.shapes[name])

    @torch.no_grad()
    def unpacked(self, name: str, begin: int, end: int) -> Tensor:
        """Return the numbers of a tensor from a place, which begins a block, up to another one."""
        count = self.shapes[name].numel()
        parts = self.get_parameter(name).view(torch.uint8).split(sizes(count))
        _, state = unpack(parts, (1, count), self.numbers)
        scales = dequantize_blockwise(state.absmax, state.state2) + state.offset
        some = QuantState(
            absmax=scales[begin // BLOCK : -(-end // BLOCK)],
            shape=torch.Size((end - begin,)),
            code=state.code,
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=self.numbers,
        )
        numbers = parts[0][begin // 2 : -(-end // 2)].view(-1, 1)
        return dequantize_4bit(numbers, some).view(-1).to(self.compute)


def pack_experts(model: Any, spared: list[str]) -> None:
    """Pack the experts of each layer, which transformers 5 joins, in a model that has its adapter."""
    from accelerate import PartialState

    left_out = [*spared, *(getattr(model, "_keep_in_fp32_modules", None) or ())]
    for name, experts in list(model.named_modules()):
        joined = {own: weight for own, weight in experts.named_parameters(recurse=False) if weight.dim() == 3}
        known = type(experts).__module__.startswith("transformers.models.")
        if not joined or not known or any(f".{part}." in f".{name}." for part in left_out):
            continue
        experts.packed = Packed(joined, PartialState().device)
        for own in joined:
            delattr(experts, own)
        outermost = model.get_submodule(name.partition(".base_layer")[0])  # of adapters
        outermost.forward = functools.partial(compute_unpacked, experts, outermost.forward)


def compute_unpacked(experts: Any, forward: Callable[..., Any], /, *inputs: Any, **named: Any) -> Any:
    """Compute experts, which have their tensors meanwhile."""
    packed: Packed = experts.packed
    for name in packed.shapes:
        experts.register_parameter(name, nn.Parameter(packed.whole(name), requires_grad=False))
    try:
        # feature: keeps_activations
        places = {getattr(experts, name).untyped_storage()._cdata: name for name in packed.shapes}
        with torch.autograd.graph.saved_tensors_hooks(
            functools.partial(without_numbers, places), functools.partial(with_numbers, packed)
        ):
            return forward(*inputs, **named)
        # end: keeps_activations
        # feature: recomputed
        return forward(*inputs, **named)
        # end: recomputed
    finally:
        for name in packed.shapes:
            delattr(experts, name)


# feature: keeps_activations
Place = tuple[str, torch.Size, tuple[int, ...], int]


def without_numbers(places: dict[int, str], tensor: Tensor) -> Tensor | Place:
    """Return what the backward pass needs of a tensor: of one that is unpacked, only where it lies."""
    name = places.get(tensor.untyped_storage()._cdata)
    return tensor if name is None else (name, tensor.shape, tensor.stride(), tensor.storage_offset())


def with_numbers(packed: Packed, kept: Tensor | Place) -> Tensor:
    """Return a tensor for the backward pass; it is unpacked once more."""
    if isinstance(kept, Tensor):
        return kept
    name, shape, stride, first = kept
    last = first + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    begin = first // BLOCK * BLOCK
    end = min(-(-(last + 1) // BLOCK) * BLOCK, packed.shapes[name].numel())
    return packed.unpacked(name, begin, end).as_strided(shape, stride, first - begin)


# end: keeps_activations
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
