"""PyTorch's fully sharded data parallel (FSDP2) through accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainwiz.message import say
from trainwiz.strategies.strategy import Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan


def gathered_bytes(training: Training) -> int:
    """What is whole at a time: the head with its gradient, or a layer with its gradient and the next layer.

    Gradients are copied in fp32 for the reduce-scatter, and weights for the all-gather. Source:
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py of torch 2.13.
    """
    b = training.compute_bytes
    return max((2 * b + 4) * training.table, (4 * b + 4) * training.layer)


# docs/decisions/loop.md: FSDP2 sums and reduces in fp32, and rank 0 alone holds the model
class Fsdp(Strategy):
    """fully_shard: weights, gradients and moments are partitioned."""

    kind = "fsdp"
    summary = say("PyTorch's own sharding (FSDP2), like zero3")
    uses_fsdp: ClassVar[bool] = True
    partitions_weights = True
    frozen_in_fp32: ClassVar[bool] = True
    autocasts: ClassVar[bool] = False
    builds_once: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    layout = "fsdp"

    def state_bytes(self, training: Training) -> int:
        """Shards in fp32."""
        return (8 + training.moment_bytes) * training.parameters // training.world

    def buffer_bytes(self, training: Training) -> int:
        """What is gathered at a time, and whole gradients in fp32 if they are reduced once per update."""
        return gathered_bytes(training) + (4 * training.parameters if training.whole_gradients else 0)

    def any_world(self, plan: Plan) -> bool:  # noqa: ARG002
        """torch.distributed.checkpoint cuts the shards anew."""
        return True

    def distributed_type(self, device: str, world: int) -> str:  # noqa: ARG002
        """accelerate's word for it."""
        return "FSDP"

    def sharded_in_rehearsal(self, device: str) -> bool:  # noqa: ARG002
        """accelerate has no FSDP on the CPU."""
        return True

    def regions(self, plan: Plan) -> dict[str, bool]:  # noqa: ARG002
        """The sharded path of the accelerate loop."""
        return {"fsdp": True, "plain_backward": True, "weight_norm": True, "as_saved": True}


STRATEGIES = (Fsdp(),)
