"""Which of DeepSpeed's settings have an effect under a plan, and which of them a plan takes as they are."""

from typing import Any

import plans
import pytest

from trainwiz.adoption.free import acts, is_free, same

ZERO: dict[str, Any] = {"strategy__kind": "deepspeed", "strategy__zero_stage": 2}
THREE = {**ZERO, "strategy__zero_stage": 3}
ON_HOST = {**ZERO, "strategy__offload_optimizer_device": "cpu"}
PARAMETERS = {**THREE, "strategy__offload_param_device": "cpu"}
ON_DISK = {**THREE, "strategy__offload_param_device": "nvme", "strategy__nvme_path": "/nvme"}
OPTIMIZER_ON_DISK = {**THREE, "strategy__offload_optimizer_device": "nvme", "strategy__nvme_path": "/nvme"}


def mixed(precision: str) -> dict[str, Any]:
    return {**ZERO, "precision__mixed_precision": precision}


@pytest.mark.parametrize(
    ("name", "under", "nowhere_under"),
    [
        ("fp16.loss_scale_window", [mixed("fp16")], [mixed("bf16"), mixed("no"), mixed("fp8")]),
        ("bf16.immediate_grad_update", [mixed("bf16"), mixed("fp8")], [mixed("fp16"), mixed("no")]),
        ("data_types.grad_accum_dtype", [mixed("bf16"), mixed("fp16")], [mixed("no")]),
        ("zero_optimization.stage3_max_live_parameters", [THREE], [ZERO, {**ZERO, "strategy__zero_stage": 1}]),
        ("zero_optimization.offload_optimizer.ratio", [ON_HOST, OPTIMIZER_ON_DISK], [ZERO, PARAMETERS]),
        ("zero_optimization.offload_param.buffer_count", [PARAMETERS, ON_DISK], [THREE, ON_HOST]),
        ("zero_optimization.overlap_comm", [ZERO, THREE], [{**ZERO, "strategy__zero_stage": 0}]),
        ("zero_force_ds_cpu_optimizer", [ON_HOST, OPTIMIZER_ON_DISK], [ZERO, PARAMETERS]),
        ("aio.block_size", [ON_DISK, OPTIMIZER_ON_DISK], [ZERO, ON_HOST, PARAMETERS]),
        ("prescale_gradients", [ZERO, {}], []),
    ],
)
def test_what_has_an_effect(name: str, under: list[dict[str, Any]], nowhere_under: list[dict[str, Any]]) -> None:
    assert [acts(name, plans.make(**values)) for values in under] == [True] * len(under)
    assert [acts(name, plans.make(**values)) for values in nowhere_under] == [False] * len(nowhere_under)


@pytest.mark.parametrize(("name", "free"), [("zero_optimization.overlap_comm", True), ("fp16.auto_cast", False)])
def test_what_a_plan_may_say(name: str, free: bool) -> None:
    assert is_free(name) is free


def test_one_is_not_true() -> None:
    assert same(1, 1.0)
    assert not same(1, True)
    assert not same(0, False)
    assert same(True, True)
