"""What each strategy says of itself, as reviewed in tests/golden/strategies.yaml."""

from __future__ import annotations

from typing import Any

import plans
import pytest
import reviewed

from trainwiz import strategies
from trainwiz.plan import Plan
from trainwiz.strategies.strategy import Training

BILLION = 10**9


def each_plan() -> dict[str, Plan]:
    """Every strategy in two precisions on a GPU, and on a CPU where it is there."""
    found = {}
    others = [{"strategy.kind": row.kind, "engine": row.engine} for row in strategies.every() if row.devices]
    for changes in [*plans.STRATEGIES, *others]:
        for device, precision in (("cuda", "bf16"), ("cuda", "no"), ("cpu", "no")):
            plan = plans.make(
                **{name.replace(".", "__"): value for name, value in changes.items()},
                machine__device=device,
                precision__mixed_precision=precision,
                machine__num_processes=1 if changes["strategy.kind"] == "single" else 4,
            )
            offload = f"{plan.strategy.offload_optimizer_device} {plan.strategy.offload_param_device}"
            found[f"{plan.strategy.label} {offload} {device} {precision}"] = plan
    return found


PLANS = each_plan()


def told(plan: Plan) -> dict[str, str]:
    """What the plan's strategy says, by the name of what is asked."""
    row, device = strategies.of(plan), plan.machine.device
    half = plan.precision.mixed_precision != "no"
    optimizer, parameters = plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device
    training = Training(
        parameters=BILLION,
        world=plan.machine.num_processes,
        half=half,
        optimizer_offloaded=optimizer != "none",
        parameters_offloaded=parameters != "none",
    )
    said = {
        "regions": " ".join(sorted(name for name, wanted in row.regions(plan).items() if wanted)),
        "bytes": [row.state_bytes(training) / BILLION, row.host_bytes_per_parameter(optimizer, parameters)],
        "copied": row.checkpoint_copy_bytes(half),
        "any_world": row.any_world(plan),
        "saves": row.saves_final_weights(plan),
        "type": row.distributed_type(device, plan.machine.num_processes),
        "environment": row.environment(device),
        "rehearsed": [row.rehearsable, row.sharded_in_rehearsal(device), row.rehearsed_precision("fp16")],
        "settings": row.settings,
    }
    return {name: str(value) for name, value in said.items()}


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> dict[str, Any]:
    return reviewed.table("strategies", lambda: {name: told(plan) for name, plan in PLANS.items()}, request.config)


@pytest.mark.parametrize("name", PLANS)
def test_a_strategy_is_as_reviewed(name: str, golden: dict[str, Any]) -> None:
    assert told(PLANS[name]) == golden[name]


def test_every_strategy_is_reviewed(golden: dict[str, Any]) -> None:
    assert golden.keys() == PLANS.keys()
    assert {name.split()[0] for name in golden} == {row.label for row in strategies.every()}


def test_full_precision_is_no_rehearsal_of_half() -> None:
    assert {row.rehearsed_precision("no") for row in strategies.every()} == {"no"}
