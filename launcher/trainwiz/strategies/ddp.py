"""DistributedDataParallel through accelerate: every rank holds everything and averages gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainwiz.message import say
from trainwiz.strategies.single import Plain
from trainwiz.strategies.strategy import Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_DISTRIBUTED_TYPES = {
    "cuda": "MULTI_GPU",
    "cpu": "MULTI_CPU",
    "npu": "MULTI_NPU",
    "xpu": "MULTI_XPU",
    "mlu": "MULTI_MLU",
    "mps": "NO",
}


def replicated_bytes(training: Training) -> int:
    """Weights, gradients and moments, whole on each rank. The gradients are views of DDP's buckets.

    The loops set `gradient_as_bucket_view`; without it the buckets would take 4 bytes per parameter more. Source:
    notes on DistributedDataParallel, https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    return (2 * training.weight_bytes + training.moment_bytes) * training.parameters


class Ddp(Plain):
    """PyTorch's DDP."""

    kind = "ddp"
    summary = say("every rank holds the full state; the least communication")
    speed = 1
    needs_every_gradient: ClassVar[bool] = True

    def state_bytes(self, training: Training) -> int:
        """A whole copy per rank."""
        return replicated_bytes(training)

    def distributed_type(self, device: str, world: int) -> str:
        """accelerate's word for DDP on this device."""
        return _DISTRIBUTED_TYPES[device] if world > 1 else "NO"

    def regions(self, plan: Plan) -> dict[str, bool]:
        """The plain path, with DDP around the model."""
        return {**super().regions(plan), "ddp": True}


STRATEGIES = (Ddp(),)
