"""Host memory for the model while it is built, before the engine moves it to the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz import strategies, tasks

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_FP32 = 4


def built_once(plan: Plan) -> bool:
    """Whether rank 0 alone holds the model, and sends the others their parts."""
    return strategies.of(plan).builds_once and tasks.of(plan).state_is_whole(plan)


def load_bytes(plan: Plan, parameters: int) -> int:
    """Host memory on rank 0's machine: each rank builds the model in fp32, or rank 0 does, or it is cut at once."""
    if strategies.of(plan).builds_in_parts(plan):
        return 0
    ranks = 1 if built_once(plan) else plan.machine.ranks_per_machine
    # Weights in four bits go to the device one by one.
    return (1 if plan.model.adapter == "qlora" else _FP32) * parameters * ranks


def whole_bytes(plan: Plan, parameters: int) -> int:
    """Device memory on each rank for the whole model: DeepSpeed moves it there, cast, before it cuts the weights."""
    strategy = strategies.of(plan)
    if not (strategy.uses_deepspeed and strategy.partitions_weights) or strategy.builds_in_parts(plan):
        return 0
    each = 2 if plan.precision.mixed_precision != "no" else _FP32
    return (0 if plan.model.adapter == "qlora" else each) * parameters
