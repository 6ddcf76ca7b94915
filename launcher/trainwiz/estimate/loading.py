"""Host memory for the model while it is built, before the engine moves it to the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz import strategies, tasks

if TYPE_CHECKING:
    from trainwiz.plan import Plan
    from trainwiz.strategies import Strategy

_FP32 = 4
_HALF = ("bf16", "fp16")


# docs/decisions/loop.md: Rank 0 loads for FSDP2
def built_once(plan: Plan) -> bool:
    """Whether rank 0 alone holds the model, and sends the others their parts."""
    return strategies.of(plan).builds_once and tasks.of(plan).state_is_whole(plan)


def load_bytes(plan: Plan, parameters: int) -> int:
    """Host memory on rank 0's machine: each rank builds the model, or rank 0 does, or it is cut at once."""
    if strategies.of(plan).builds_in_parts(plan):
        return 0
    ranks = 1 if built_once(plan) else plan.machine.ranks_per_machine
    each = bytes_built(strategies.of(plan), adapter=plan.model.adapter, precision=plan.precision.mixed_precision)
    return each * parameters * ranks


def bytes_built(strategy: Strategy, *, adapter: str, precision: str) -> int:
    """Of each parameter: fp32, unless it is frozen. Weights in four bits go to the device one by one."""
    if adapter == "none":
        return _FP32
    in_half = precision in _HALF and strategy.keeps_frozen_dtype
    return 1 if adapter == "qlora" else 2 if in_half else _FP32


def whole_bytes(plan: Plan, parameters: int) -> int:
    """Device memory on each rank for the whole model: DeepSpeed moves it there, cast, before it cuts the weights."""
    strategy = strategies.of(plan)
    if not (strategy.uses_deepspeed and strategy.partitions_weights) or strategy.builds_in_parts(plan):
        return 0
    each = 2 if plan.precision.mixed_precision != "no" else _FP32
    return (0 if plan.model.adapter == "qlora" else each) * parameters
