"""One rank, plain PyTorch through accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainwiz.message import say
from trainwiz.strategies.strategy import WHOLE, Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan


class Plain(Strategy):
    """What the strategies without sharding have in common."""

    keeps_frozen_dtype: ClassVar[bool] = True
    whole_parameters: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    needs_process_group: ClassVar[bool] = False
    layout = WHOLE

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
        """Weights and gradients in the type of the weights, and moments; autocast keeps them as they are."""
        return (2 * training.weight_bytes + training.moment_bytes) * training.parameters


STRATEGIES = (Single(),)
