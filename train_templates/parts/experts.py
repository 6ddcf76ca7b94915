"""The routed experts of a mixture in 4 bits (NF4), which bitsandbytes leaves in 16.

transformers 5 keeps the experts of a layer as tensors of three dimensions, one matrix for each expert. Here they are
packed as they are in QLoRA, and are whole only while their layer computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

# feature: whole_4bit
from collections.abc import Iterator
from contextlib import contextmanager

# end: whole_4bit
from typing import Any

import torch
from accelerate import PartialState
from bitsandbytes.functional import QuantState, dequantize_4bit, dequantize_blockwise
from torch import Tensor, nn

from nf4 import AT_ONCE, BLOCK, pack, sizes, unpack


class Packed(nn.Module):
    """The tensors of a layer's routed experts in four bits, under their names."""

    def __init__(self, tensors: dict[str, Tensor], rounded: dict[str, Tensor], device: torch.device) -> None:
        """Round tensors on a device, unless they are already. Those that have no numbers get bytes that have none."""
        super().__init__()
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.numbers = self.compute = next(iter(tensors.values())).dtype
        for name, tensor in tensors.items():
            if name in rounded:
                bytes_of = rounded[name]
            elif tensor.is_meta:
                bytes_of = torch.empty(sum(sizes(tensor.numel())), dtype=torch.uint8, device=tensor.device)
            else:
                bytes_of = pack(tensor.detach().to(device).contiguous()).to(tensor.device)
            self.register_parameter(name, nn.Parameter(bytes_of, requires_grad=False))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Compute in the type that an engine casts the model to."""
        self.compute = fn(torch.empty(0, dtype=self.compute)).dtype
        return super()._apply(fn, recurse)

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

        def part(first: int, last: int) -> Tensor:
            some = QuantState(
                absmax=scales[first // BLOCK : -(-last // BLOCK)],
                shape=torch.Size((last - first,)),
                code=state.code,
                blocksize=BLOCK,
                quant_type="nf4",
                dtype=self.numbers,
            )
            numbers = parts[0][first // 2 : -(-last // 2)].view(-1, 1)
            return dequantize_4bit(numbers, some).view(-1).to(self.compute)

        if end - begin <= AT_ONCE:
            return part(begin, end)
        whole = torch.empty(end - begin, dtype=self.compute, device=parts[0].device)
        for first in range(begin, end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            whole[first - begin : last - begin] = part(first, last)
        return whole


def is_joined(module: nn.Module, weight: Tensor) -> bool:
    """Return whether a weight of a module is one matrix for each of several experts."""
    several = weight.dim() == 3 and len(weight) > 1 and weight.is_floating_point()
    return several and type(module).__module__.startswith("transformers.models.")


# feature: whole_4bit
@contextmanager
def packed_as_read(modules_to_save: str) -> Iterator[None]:
    """Pack the experts of each layer as soon as they are read, so that no GPU ever holds all of them in 16 bits.

    Tensors of their shape, which take no memory, stand in for them until `pack_experts`. Modules that are trained in
    full may be experts, or contain some: then all of them are packed afterwards.
    """
    register = nn.Module.register_parameter

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta and is_joined(module, parameter):
            weight = parameter.detach()
            module.__dict__.setdefault("rounded", {})[name] = pack(weight.contiguous())
            parameter = nn.Parameter(weight.new_zeros(1).expand(weight.shape), requires_grad=False)
            parameter._is_hf_initialized = True  # type: ignore[attr-defined]
        register(module, name, parameter)

    if not modules_to_save:
        nn.Module.register_parameter = registered  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


# end: whole_4bit
def pack_experts(model: Any, spared: list[str]) -> None:
    """Pack the experts of each layer in a model that has its adapter."""
    left_out = [*spared, *(getattr(model, "_keep_in_fp32_modules", None) or ())]
    for name, experts in list(model.named_modules()):
        joined = {own: weight for own, weight in experts.named_parameters(recurse=False) if is_joined(experts, weight)}
        rounded = experts.__dict__.pop("rounded", {})
        if not rounded and (not joined or any(f".{part}." in f".{name}." for part in left_out)):
            continue
        experts.packed = Packed(joined, rounded, PartialState().device)
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
