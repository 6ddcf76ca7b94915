"""What is decided for typical answers on typical machines, and by which numbers; see tests/golden/decisions.yaml.

Values that are the same for everybody are left out.
"""

from __future__ import annotations

from typing import Any

import pytest
import reviewed
import test_decide

from trainwiz import plan as plans
from trainwiz.decide import decide

CASES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "nothing, 8xh100": ("8xh100", {}, {}),
    "nothing, 1xt4": ("1xt4", {}, {}),
    "nothing, cpu": ("cpu", {}, {}),
    "7B, 8xh100": ("8xh100", {"model.name": "some/model"}, {"parameters": 7 * 10**9}),
    "70B, 8xh100": ("8xh100", {"model.name": "some/model"}, {"parameters": 70 * 10**9, "samples": 5000}),
    "7B, 4xa100-40g": ("4xa100-40g", {"model.name": "some/model"}, {"parameters": 7 * 10**9, "samples": 100_000}),
    "3B, 2xrtx4090": ("2xrtx4090", {"model.name": "some/model"}, {"parameters": 3 * 10**9}),
    "llama-1b, 8xv100": ("8xv100", {"model.name": "llama-1b", "schedule.n_epochs": 3}, {"samples": 999}),
    "images, 4xa100-40g": ("4xa100-40g", {"task": "image_classification", "batch.real_batch_size": 96}, {}),
    "sft with lora, 1xt4": (
        "1xt4",
        {"task": "sft", "model.adapter": "lora", "model.name": "org/model"},
        {"parameters": 10**9},
    ),
    "two machines, 8xh100": ("8xh100", {"machine.num_machines": 2, "strategy.kind": "fsdp"}, {}),
    "zero3 without offload, 8xh100": ("8xh100", {"strategy.zero_stage": 3, "data.train": "a.txt"}, {"samples": 40}),
    "one rank of gemini, 8xh100": ("8xh100", {"strategy.kind": "gemini", "machine.num_processes": 1}, {}),
    "fp16 on a cpu": ("cpu", {"machine.num_processes": 1, "precision.mixed_precision": "bf16"}, {"samples": 10**7}),
}


def decided(name: str) -> dict[str, str]:
    """Every value that is not the plan's own default, with its source; then each strategy that was weighed."""
    machine, answers, known = CASES[name]
    data = test_decide.counted(known["samples"]) if "samples" in known else None
    model = test_decide.sized(known["parameters"]) if "parameters" in known else None
    made = decide(answers, test_decide.machine(machine), model=model, data=data)
    values = {
        key: f"{made.plan.get(key)} ({source.kind}: {reviewed.numbers(source.reason)})"
        for key, source in made.sources.items()
        if key not in plans.defaults() or made.plan.get(key) != plans.defaults()[key]
    }
    return values | {f"option {option.name}": str(option.bytes_per_rank) for option in made.options}


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    return reviewed.table("decisions", lambda: {name: decided(name) for name in CASES}, request.config)


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_as_reviewed(name: str, golden: dict[str, dict[str, str]]) -> None:
    assert decided(name) == golden[name]
    assert len(golden) == len(CASES)
