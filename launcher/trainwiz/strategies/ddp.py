"""DistributedDataParallel through accelerate: every rank holds everything and averages gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainwiz.message import say
from trainwiz.strategies.single import Plain, replicated_bytes
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


class Ddp(Plain):
    """PyTorch's DDP."""

    kind = "ddp"
    summary = say("every rank holds the full state; the least communication")
    speed = 1
    needs_every_gradient: ClassVar[bool] = True

    def state_bytes(self, training: Training) -> int:
        """A whole copy per rank. The gradients are views of DDP's buckets.

        The loops set `gradient_as_bucket_view`; without it the buckets are as large as the gradients. Source: notes on
        DistributedDataParallel, https://docs.pytorch.org/docs/stable/notes/ddp.html
        """
        buckets = 0 if training.bucket_view else training.weight_bytes * training.parameters
        return replicated_bytes(training) + buckets

    def tables_on_host(self, *, tied: bool) -> int:
        """gloo copies the largest bucket."""
        return super().tables_on_host(tied=tied) + 1

    def gradient_bytes(self, training: Training) -> int:  # noqa: ARG002
        """The buckets are there from the first update on."""
        return 0

    def link_bytes(self, training: Training, accumulation: int) -> float:  # noqa: ARG002
        """Gradients once per update, reduced and then gathered."""
        return 2 * training.ring_share * training.weight_bytes * training.parameters

    def distributed_type(self, device: str, world: int) -> str:
        """accelerate's word for DDP on this device."""
        return _DISTRIBUTED_TYPES[device] if world > 1 else "NO"

    def regions(self, plan: Plan) -> dict[str, bool]:
        """The plain path, with DDP around the model."""
        # docs/decisions/loop.md: DDP's buckets are laid out before the first update
        return {**super().regions(plan), "ddp": True, "settled": True}


STRATEGIES = (Ddp(),)
