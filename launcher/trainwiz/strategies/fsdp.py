"""PyTorch's fully sharded data parallel (FSDP2) through accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainwiz.message import say
from trainwiz.strategies.strategy import Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan


class Sharded(Strategy):
    """What both versions of PyTorch's FSDP have in common.

    The modules outside the layers (embeddings, head, last norm) are one group, which stays whole from the forward pass
    to the end of the backward pass; layers come one by one, in four bits with QLoRA, and then one matrix at a time is
    unpacked. Gradients are whole until they are reduced, from a copy in
    fp32. Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py of torch 2.13; peaks in docs/forecast.md.
    """

    uses_fsdp: ClassVar[bool] = True
    partitions_weights = True
    partitions_moments = True
    frozen_in_fp32: ClassVar[bool] = True
    autocasts: ClassVar[bool] = False
    layers_at_once: ClassVar[int]
    """Layers that are whole at a time in the backward pass: 2 where the next one is gathered ahead."""

    def state_bytes(self, training: Training) -> int:
        """Shards, unless they are in host memory."""
        if training.parameters_offloaded:
            return 0
        return (2 * training.weight_bytes + training.moment_bytes) * training.parameters // training.world

    def gradient_bytes(self, training: Training) -> int:
        """Shards as large as those of the weights, and where they are."""
        return 0 if training.parameters_offloaded else training.weight_bytes * training.parameters // training.world

    def loss_buffer_bytes(self, training: Training) -> int:
        """The modules outside the layers, and whole gradients if they are reduced once per update."""
        return training.compute_bytes * training.root + _whole_gradients(training)

    def buffer_bytes(self, training: Training) -> int:
        """Beside those a layer, or two, the gradient of the head, and that of the layer with its copy."""
        b = training.compute_bytes
        gathered = self.layers_at_once * training.gathered_layer + training.unpacked_bytes
        gradients = 0 if training.adapted else b * (training.table - training.frozen_head) + (b + 4) * training.layer
        return self.loss_buffer_bytes(training) + gathered + gradients

    def link_bytes(self, training: Training, accumulation: int) -> float:
        """Weights gathered for the forward and the backward pass, and gradients scattered, in each micro-batch."""
        b, model = training.compute_bytes, training.model_parameters or training.parameters
        reductions = 1 if training.whole_gradients else accumulation
        return training.ring_share * b * (2 * accumulation * model + reductions * training.parameters)

    def reduction_bytes(self, training: Training) -> int:
        """The modules outside the layers with their gradients and the copy of these."""
        b = training.compute_bytes
        gradients = 0 if training.adapted else (b + 4) * (training.root - training.frozen_head)
        return self.loss_buffer_bytes(training) + gradients


def _whole_gradients(training: Training) -> int:
    return 4 * training.parameters if training.whole_gradients else 0


# docs/decisions/loop.md: FSDP2 sums and reduces in fp32, and rank 0 alone holds the model
class Fsdp(Sharded):
    """fully_shard: weights, gradients and moments are partitioned."""

    kind = "fsdp"
    summary = say("PyTorch's own sharding (FSDP2), like zero3")
    four_bit_speed: ClassVar[int | None] = 3
    builds_once: ClassVar[bool] = True
    packs_experts = True
    frozen_in_fp32: ClassVar[bool] = False
    keeps_frozen_dtype: ClassVar[bool] = True
    copies_state: ClassVar[bool] = True
    saves_ties_twice: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    # docs/decisions/loop.md: FSDP2 gathers ahead by itself
    layers_at_once = 2
    layout = "fsdp"

    def tables_on_host(self, *, tied: bool) -> int:
        """Embeddings that are the head, too, are gathered and have their gradients reduced as both."""
        return 4 if tied else 0

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
        return {"fsdp": True, "environment": True, "plain_backward": True, "weight_norm": True, "as_saved": True}


STRATEGIES = (Fsdp(),)
