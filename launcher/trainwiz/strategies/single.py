"""One rank, plain PyTorch through accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainwiz.message import say
from trainwiz.strategies.strategy import WHOLE, Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan


def replicated_bytes(training: Training) -> int:
    """Weights, gradients and moments, whole on each rank."""
    return (2 * training.weight_bytes + training.moment_bytes) * training.parameters


class Plain(Strategy):
    """The base of the strategies without sharding."""

    keeps_frozen_dtype: ClassVar[bool] = True
    keeps_trained_dtype: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    whole_parameters: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    needs_process_group: ClassVar[bool] = False
    copies_state: ClassVar[bool] = True
    packs_experts = True
    layout = WHOLE

    def buffer_bytes(self, training: Training) -> int:
        """The 16-bit copy that autocast keeps of weights in fp32."""
        return super().buffer_bytes(training) if training.weight_bytes == 4 else 0

    def gradient_bytes(self, training: Training) -> int:
        """As large as the weights."""
        return training.weight_bytes * training.parameters

    def tables_on_host(self, *, tied: bool) -> int:
        """Autograd adds up the two gradients of embeddings that are the head, too."""
        return 2 if tied else 0

    def any_world(self, plan: Plan) -> bool:  # noqa: ARG002
        """Every rank holds everything, and rank 0 saves it."""
        return True

    def regions(self, plan: Plan) -> dict[str, bool]:
        """The plain path of the accelerate loop."""
        return {
            "plain": True,
            "cpu": plan.machine.device == "cpu",
            "plain_backward": True,
            "whole_weights": True,
            "weight_norm": True,
            "as_saved": True,
        }


class Single(Plain):
    """One rank holds everything."""

    kind = "single"
    summary = say("one rank, no sharding")
    one_rank: ClassVar[bool] = True
    speed = 1

    def state_bytes(self, training: Training) -> int:
        """Weights, gradients and moments in fp32; autocast keeps weights in fp32."""
        return replicated_bytes(training)


STRATEGIES = (Single(),)
