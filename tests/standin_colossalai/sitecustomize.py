"""Colossal-AI's ZeRO, Gemini and FSDP on CPU ranks, for tests on machines without a GPU: never in a generated file.

With this folder on PYTHONPATH and TRAINWIZ_COLOSSALAI_STANDIN=cpu, what these plugins ask of a device is answered by
the CPU: streams that do nothing, memory that is not pinned, chunks that count as the device's, and the arithmetic of
the fused Adam written in torch. All else (partitions, chunks, collectives, clipping, the order of updates) is theirs.
"""

import contextlib
import importlib.abc
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any


class Stream:
    """A stream on which everything is done at once."""

    def wait_stream(self, other: object) -> None:
        """Nothing runs elsewhere."""

    def synchronize(self) -> None:
        """Nothing runs elsewhere."""


def change_accelerator(module: Any) -> None:
    """The CPU's accelerator has no streams; now it has."""
    cpu = module.CpuAccelerator
    cpu.synchronize = lambda *_: None
    cpu.device_count = lambda _: 1
    cpu.Stream = cpu.current_stream = lambda *_, **__: Stream()
    cpu.stream = lambda *_: contextlib.nullcontext()


def change_zero(module: Any) -> None:
    """`device is required`."""
    module.LowLevelZeroOptimizer._sanity_checks = lambda _: None


def change_chunk(module: Any) -> None:
    """Gemini tells the device's memory from the host's by its type; here they are one."""
    chunk, close, reduce = module.Chunk, module.Chunk.close_chunk, module.Chunk.reduce

    def close_chunk(self: Any) -> None:
        close(self)
        if not self.keep_gathered and self.cuda_shard is None:
            self.cuda_shard = self.cpu_shard.clone()

    chunk.device_type = property(lambda _: "cuda")
    chunk.close_chunk = close_chunk
    # gloo reads a buffer whose storage Gemini frees as soon as the call returns; on a device its stream waits.
    chunk.reduce = lambda self, async_op=False: reduce(self)  # noqa: ARG005


def change_manager(module: Any) -> None:
    """There is nowhere to move a chunk to."""
    module.ChunkManager.move_chunk = lambda *_, **__: None


def change_fused_adam(module: Any) -> None:
    """The kernel is called with lists of tensors; so is this."""
    module.multi_tensor_applier = Applier()


class Applier:
    """What hands the lists to the kernel."""

    available = True

    def __call__(self, kernel: Callable[..., None], _: object, tensors: Any, *numbers: float) -> None:
        kernel(tensors, *numbers)


def adam(tensors: Any, lr: float, beta1: float, beta2: float, eps: float, step: int, *rest: float) -> None:
    """AdamW over lists of gradients, weights and moments, as `multi_tensor_adam_kernel.cu` computes it."""
    _, _, decay, scale = rest
    for gradient, weight, first, second in zip(*tensors, strict=True):
        gradient = gradient.float() / (scale if scale > 0 else 1)
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        weight.mul_(1 - lr * decay)
        weight.addcdiv_(first / (1 - beta1**step), (second / (1 - beta2**step)).sqrt().add_(eps), value=-lr)


def change_loader(module: Any) -> None:
    """The kernel of the fused Adam needs nvcc."""
    module.FusedOptimizerLoader.load = lambda _: types.SimpleNamespace(multi_tensor_adam=adam)


def change_torch(torch: Any) -> None:
    """No pinned memory, no streams, and a device for FSDP."""
    empty = torch.empty
    torch.empty = lambda *sizes, pin_memory=False, **named: empty(*sizes, **named)  # noqa: ARG005
    torch.Tensor.record_stream = lambda *_: None
    torch.cuda.current_device = lambda: torch.device("cpu")


def change_fsdp(module: Any) -> None:
    """FSDP1 crashes where it moves the whole weights to the CPU and they are there."""
    config = module.FullStateDictConfig
    kept = config.__init__

    def init(self: Any, **named: Any) -> None:
        kept(self, **{**named, "offload_to_cpu": False})

    config.__init__ = init


CHANGES: dict[str, Callable[[Any], None]] = {
    "colossalai.accelerator.cpu_accelerator": change_accelerator,
    "colossalai.zero.low_level.low_level_optim": change_zero,
    "colossalai.zero.gemini.chunk.chunk": change_chunk,
    "colossalai.zero.gemini.chunk.manager": change_manager,
    "colossalai.nn.optimizer.fused_adam": change_fused_adam,
    "colossalai.kernel.kernel_loader": change_loader,
    "torch": change_torch,
    "torch.distributed.fsdp.api": change_fsdp,
}


class StandIn(importlib.abc.MetaPathFinder):
    """Changes these modules once they have been imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        change = CHANGES.pop(name, None)
        spec = importlib.util.find_spec(name) if change else None
        if change is None or spec is None:
            return None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_change(module: Any) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


if os.environ.get("TRAINWIZ_COLOSSALAI_STANDIN") == "cpu":
    sys.meta_path.insert(0, StandIn())
