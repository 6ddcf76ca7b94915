"""Changes of the plan that should help after a failure. The caller checks the plan that results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz import batch, strategies
from trainwiz.message import Message, say

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_KEPT_CHECKPOINTS = 2


@dataclass(frozen=True, kw_only=True)
class PlanChange:
    """A change of the plan."""

    changes: Mapping[str, Any]
    """New values by dotted key."""
    why: Message
    """Why they help."""


def candidates(kind: str, plan: Plan) -> Iterator[PlanChange]:
    """The changes of a kind that are possible in this plan, the smallest first."""
    for make in _KINDS.get(kind, ()):
        if change := make(plan):
            yield change


def _smaller_micro_batch(plan: Plan) -> PlanChange | None:
    """The micro-batch halved (or the next smaller divisor), with the accumulation that keeps the real batch."""
    given, world = plan.batch, plan.machine.num_processes
    for micro in range(given.per_device_batch_size // 2, 0, -1):
        solved = batch.solve(world=world, real=given.real_batch_size, micro=micro)
        if isinstance(solved, batch.Batch):
            return PlanChange(
                changes={
                    "batch.per_device_batch_size": solved.micro,
                    "batch.gradient_accumulation_steps": solved.accumulation,
                },
                why=say("the real batch stays the same: {equation}", equation=str(solved)),
            )
    return None


def _higher_zero_stage(plan: Plan) -> PlanChange | None:
    row = strategies.of(plan)
    if not row.uses_deepspeed or plan.machine.num_processes == 1 or row.partitions_weights:
        return None
    return PlanChange(changes={"strategy.zero_stage": 3}, why=say("each rank then holds only its shard of the weights"))


def _offloaded_optimizer(plan: Plan) -> PlanChange | None:
    if not strategies.of(plan).uses_deepspeed or plan.strategy.zero_stage == 0:
        return None
    if plan.strategy.offload_optimizer_device != "none":
        return None
    return PlanChange(
        changes={"strategy.offload_optimizer_device": "cpu"},
        why=say("the optimizer state moves to host memory: slower, but much smaller on the GPU"),
    )


def _no_workers(plan: Plan) -> PlanChange | None:
    if plan.data.num_workers == 0:
        return None
    return PlanChange(changes={"data.num_workers": 0}, why=say("the ranks then load the data themselves"))


def _bf16(plan: Plan) -> PlanChange | None:
    if plan.precision.mixed_precision != "fp16":
        return None
    return PlanChange(
        changes={"precision.mixed_precision": "bf16"}, why=say("bf16 has the range of fp32 and needs no loss scale")
    )


def _any_port(plan: Plan) -> PlanChange | None:
    if plan.machine.num_machines > 1 or plan.machine.main_process_port == 0:
        return None
    return PlanChange(changes={"machine.main_process_port": 0}, why=say("each launch then uses a free port"))


def _fewer_checkpoints(plan: Plan) -> PlanChange | None:
    limit = plan.checkpoint.checkpoints_total_limit
    if limit is not None and 0 < limit <= _KEPT_CHECKPOINTS:
        return None
    return PlanChange(
        changes={"checkpoint.checkpoints_total_limit": _KEPT_CHECKPOINTS},
        why=say("older checkpoints are deleted; free some space before the launch"),
    )


def _offload_to_cpu(plan: Plan) -> PlanChange | None:
    keys = ("strategy.offload_optimizer_device", "strategy.offload_param_device")
    changes = {key: "cpu" for key in keys if plan.get(key) == "nvme"}
    if not changes:
        return None
    return PlanChange(changes=changes, why=say("host memory does not need libaio; NVMe does"))


_KINDS: Mapping[str, tuple[Callable[[Plan], PlanChange | None], ...]] = {
    "smaller_micro_batch": (_smaller_micro_batch, _higher_zero_stage, _offloaded_optimizer),
    "less_host_memory": (_no_workers, _smaller_micro_batch),
    "fewer_workers": (_no_workers,),
    "bf16": (_bf16,),
    "any_port": (_any_port,),
    "fewer_checkpoints": (_fewer_checkpoints,),
    "offload_to_cpu": (_offload_to_cpu,),
}
"""By the kind that a signature names as its `plan_change`."""
