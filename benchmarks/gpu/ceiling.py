"""The MFU that the generated script could reach at most: FLOPs and bytes of an update, counted on fake tensors.

    python benchmarks/gpu/ceiling.py [--model gpt2-124m] [--gpu H200]

The project's own model and loss run forward and backward on tensors without data, so this needs no GPU and no memory.
Each kernel takes as long as its FLOPs or its bytes do, whichever is longer (a roofline,
https://doi.org/10.1145/1498765.1498785). Uncompiled, each operation is a kernel that reads what it is given and writes
what it returns. Compiled, operations of a layer between two matrix products are one kernel, which reads what came from
elsewhere and writes what is used elsewhere; so are those on the logits. Launching kernels takes no time, and the peak
is that of the data sheet, so nothing measured can be above the second number. MFU counts FLOPs as throughput.py does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "launcher"), str(Path(__file__).parent)]

import throughput  # noqa: E402

from trainwiz.estimate.gpus import GpuModel, gpu_model  # noqa: E402

GPUS = ("H100", "H200")
STEP_BYTES = 28
"""Of a parameter in AdamW's step: weight, gradient and two moments read, three of them written, in fp32."""
PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_, torch.ops.aten.bmm, torch.ops.aten.baddbmm)
BACKWARD = 2.5
"""Products in the backward pass of fused attention for each in its forward pass: five instead of two."""


@dataclass
class Operation:
    """One call of a kernel."""

    name: str
    flops: float
    reads: dict[int, int]
    """Bytes of what it is given, by tensor."""
    writes: dict[int, int]
    """Bytes of what it returns."""
    is_compiled: bool = True
    """Whether model.compile makes it a part of larger kernels."""

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices, so that no other operation becomes a part of it."""
        return self.flops > 0


@dataclass
class Kernels(TorchDispatchMode):
    """Notes every operation with its FLOPs and bytes; tensors that share memory are one."""

    found: list[Operation] = field(default_factory=list)
    numbers: dict[StorageWeakRef, int] = field(default_factory=dict)
    """Their weak references keep the address of memory that is gone from being used again."""
    is_compiled: bool = False
    """Of what is computed now."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        before = {self.number(each) for each in given}
        returned = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(returned) if isinstance(each, Tensor)]
        is_alias = bool(made) and all(self.number(each) in before for each in made) and not func._schema.is_mutable
        if made and not is_alias and "empty" not in str(func):
            reads, writes = (dict(self.sizes(each)) for each in (given, made))
            self.found.append(Operation(str(func), self.flops_of(func, given), reads, writes, self.is_compiled))
        return returned

    def compile(self, called: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, as something that is compiled."""

        def compiled(*arguments: Any, **named: Any) -> Any:
            self.is_compiled = True
            try:
                return called(*arguments, **named)
            finally:
                self.is_compiled = False

        return compiled

    def number(self, tensor: Tensor) -> int:
        """Which memory a tensor lies in."""
        return self.numbers.setdefault(StorageWeakRef(tensor.untyped_storage()), len(self.numbers))

    def sizes(self, tensors: Iterable[Tensor]) -> Iterator[tuple[int, int]]:
        """The bytes of each tensor by its memory."""
        for tensor in tensors:
            yield self.number(tensor), tensor.numel() * tensor.element_size()

    @staticmethod
    def flops_of(func: Any, given: list[Tensor]) -> float:
        """2 for each multiplication and addition; of causal attention half of the square."""
        if func.overloadpacket in PRODUCTS:
            one, other = given[-3:-1] if "out" in str(func) else given[-2:]
            return 2.0 * one.numel() * other.shape[-1]
        if "scaled_dot_product" in str(func):
            backward = "backward" in str(func)
            query, key = given[1 if backward else 0], given[2 if backward else 1]
            return (BACKWARD if backward else 1.0) * 2.0 * query.numel() * key.shape[-2]
        return 0.0


def fused(found: list[Operation]) -> list[Operation]:
    """The same operations with each compiled stretch between two products as one kernel."""
    last_read: dict[int, int] = {}
    for place, each in enumerate(found):
        last_read |= dict.fromkeys(each.reads, place)
    kernels, begin = list[Operation](), 0
    for end in range(len(found) + 1):
        if end < len(found) and found[end].is_compiled and not found[end].is_product:
            continue
        stretch = found[begin:end]
        reads, writes = dict[int, int](), dict[int, int]()
        for each in stretch:
            reads |= {number: size for number, size in each.reads.items() if number not in writes}
            writes |= each.writes
        used_later = {number: size for number, size in writes.items() if last_read.get(number, end) >= end}
        kernels += [Operation("fused", 0.0, reads, used_later)] if stretch else []
        kernels += [found[end]] if end < len(found) else []
        begin = end + 1
    return kernels


def seconds(kernels: Iterable[Operation], gpu: GpuModel) -> float:
    """How long they take one after another."""
    return sum(
        max(each.flops / gpu.half_flops, (sum(each.reads.values()) + sum(each.writes.values())) / gpu.bandwidth)
        for each in kernels
    )


@dataclass(frozen=True)
class Counted:
    """What one micro-batch, and its share of the optimizer's step, come to."""

    operations: list[Operation]
    tokens: int
    model_flops: float
    """Of the micro-batch, as MFU counts them."""
    parameters: int
    accumulation: int

    def mfu(self, gpu: GpuModel, *, compiled: bool) -> float:
        """The highest MFU on this GPU."""
        step = self.parameters * STEP_BYTES / gpu.bandwidth / self.accumulation
        kernels = fused(self.operations) if compiled else self.operations
        return self.model_flops / gpu.half_flops / (seconds(kernels, gpu) + step)


def count(shape: throughput.Shape, project: Path) -> Counted:
    """Run a micro-batch of a generated project on fake tensors, as autocast does in bf16."""
    sys.path.insert(0, str(project))
    torch.compile = lambda function: function  # type: ignore[assignment]  # what it would do is what is counted here
    import head_loss
    import train

    with FakeTensorMode():
        values = {name: value for name, value in shape.model().items() if hasattr(train.Config, name)}
        model = train.task.build_model(train.Config(sequence_length=shape.length, **values))
        batch = {name: torch.zeros(shape.micro, shape.length, dtype=torch.long) for name in ("inputs", "labels")}
        kernels = Kernels()
        for layer in (layer for part in model.modules() if isinstance(part, nn.ModuleList) for layer in part):
            layer.forward = kernels.compile(layer.forward)
        head_loss.loss_and_errors = kernels.compile(head_loss.loss_and_errors)
        with kernels:
            with torch.autocast("cpu", torch.bfloat16):
                loss = train.task.loss_sum(model, batch)
            kernels.is_compiled = True  # of the backward pass, the layers are nearly all
            loss.backward()
    tokens = shape.micro * shape.length
    return Counted(
        operations=kernels.found,
        tokens=tokens,
        model_flops=tokens * shape.flops_per_token(float(shape.length)),
        parameters=sum(weight.numel() for weight in model.parameters()),
        accumulation=shape.real // shape.micro,
    )


def ceilings(counted: Counted, gpus: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Of each GPU the highest MFU, as it is run from Python and compiled."""
    known: Mapping[str, GpuModel | None] = {name: gpu_model(name) for name in gpus}
    return {
        name: (counted.mfu(gpu, compiled=False), counted.mfu(gpu, compiled=True)) for name, gpu in known.items() if gpu
    }


def main() -> None:
    """Print one model's ceilings as JSON, with the kernels that take most of the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=throughput.SHAPES, default="gpt2-124m")
    parser.add_argument("--gpu", choices=GPUS, action="append")
    parser.add_argument("--toy", action="store_true", help="the shape that tests use")
    parser.add_argument("--project", type=Path, help="a generated project; made if it is not given")
    options = parser.parse_args()
    shape = (throughput.TOYS if options.toy else throughput.SHAPES)[options.model]
    with tempfile.TemporaryDirectory() as folder:
        project = options.project or Path(folder) / "project"
        if options.project is None:
            throughput.make_project(project, shape.preset, "fixed", toy=False)
        counted = count(shape, project)
    found = ceilings(counted, options.gpu or GPUS)
    rows = {name: {"mfu": plain, "mfu_compiled": compiled} for name, (plain, compiled) in found.items()}
    flops = sum(each.flops for each in counted.operations)
    print(
        json.dumps({"model": options.model, "flops": flops, "kernels": len(counted.operations), "gpus": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
