"""The defaults of strategy, micro-batch and recomputation are the first row of `trainwiz plan`."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_decide
import yaml
from projects import trainwiz
from test_decide import known_as, why

from trainwiz import models, rules
from trainwiz.decide import Decided, decide
from trainwiz.decide.candidates import NEAR, Candidate, Place, candidates
from trainwiz.estimate import Estimate, estimate
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.gpus import gpu_of
from trainwiz.estimate.state import work_of
from trainwiz.finding import Level
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import ModelFacts
from trainwiz.workflows.planning.quantity import machine_named

NAMES = ("Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B")
GPUS = ("1x4090", "4x4090", "8xL40S", "4xA100-40G", "3xH100", "8xH100")


def rows_of(made: Decided, machine: Machine, model: ModelFacts, **given: Any) -> tuple[Candidate, ...]:
    """The rows that `trainwiz plan` shows for what was decided."""
    plan = made.plan
    place = Place(
        memory_bytes=min(gpu.memory_bytes for gpu in machine.gpus),
        gpu=gpu_of(machine),
        ranks=plan.machine.num_processes,
        ranks_per_machine=plan.machine.ranks_per_machine,
        host_bytes=machine.memory.total_bytes or None,
    )
    work = replace(work_of(plan, model.parameters or 0, model.transformer), loss=Loss())
    return candidates(work, place, plan.batch.real_batch_size, **given)


def _estimate(plan: Plan, model: ModelFacts) -> Estimate:
    return estimate(plan, model.parameters or 0, model.transformer)


def chosen(made: Decided) -> tuple[str, str, int, int]:
    """What rows differ in."""
    plan, offloads = made.plan, made.plan.strategy.offload_optimizer_device != "none"
    return (
        plan.strategy.label + "+offload" * offloads,
        plan.model.activation_checkpointing,
        plan.batch.per_device_batch_size,
        plan.batch.gradient_accumulation_steps,
    )


def of_row(row: Candidate) -> tuple[str, str, int, int]:
    return row.name, row.work.checkpointing, row.work.samples, row.accumulation


@pytest.mark.parametrize("task", ["sft", "causal_lm", "preference"])
def test_the_default_is_the_first_row(task: str) -> None:
    for name, gpus in itertools.product(NAMES, GPUS):
        model, machine = known_as(name), machine_named(gpus)[0]
        made = decide({"task": task, "model.name": name}, machine, model=model)
        first = rows_of(made, machine, model)[0]
        if first.why_not is None:
            assert chosen(made) == of_row(first), (name, gpus)
            facts = rules.Facts(plan=made.plan, machine=machine, estimate=_estimate(made.plan, model))
            found = [one for one in rules.check(facts, rules=rules.of_plans()) if one.level is Level.ERROR]
            assert not found, (name, gpus, found)


@pytest.mark.parametrize(
    "given",
    [
        {"batch.per_device_batch_size": 2},
        {"model.activation_checkpointing": "full"},
        {"batch.real_batch_size": 48},
        {"strategy.kind": "ddp"},
        {"strategy.zero_stage": 3},
        {"strategy.kind": "colossal_zero2"},
    ],
)
def test_it_is_the_first_row_with_what_was_typed(given: dict[str, Any]) -> None:
    model, machine = known_as("meta-llama/Llama-3.2-1B"), machine_named("8xH100")[0]
    made = decide({"model.name": model.name, **given}, machine, model=model)
    first = rows_of(
        made,
        machine,
        model,
        only=made.plan.strategy.label if any(key.startswith("strategy.") for key in given) else None,
        samples=given.get("batch.per_device_batch_size"),
        checkpointing=given.get("model.activation_checkpointing"),
    )[0]
    assert chosen(made) == of_row(first)


def test_only_the_accumulation_is_typed() -> None:
    """The real batch is what fits at once, so often; it used to be the usual one, whatever that took of memory."""
    model, machine = known_as("Qwen/Qwen2.5-7B"), machine_named("8xH100")[0]
    made = decide({"model.name": model.name, "batch.gradient_accumulation_steps": 1}, machine, model=model)
    needed = rows_of(made, machine, model, only=chosen(made)[0])[0]
    assert needed.why_not is None
    assert made.plan.batch.real_batch_size == 8 * made.plan.batch.per_device_batch_size


def test_what_the_forecast_cannot_tell_apart_is_decided_by_what_is_simpler() -> None:
    model, machine = known_as("meta-llama/Llama-3.2-1B"), machine_named("8xA100")[0]
    made = decide({"model.name": model.name}, machine, model=model)
    rows = rows_of(made, machine, model)
    assert rows[0].name == "ddp"
    assert min(row.seconds for row in rows) < rows[0].seconds < NEAR * min(row.seconds for row in rows)


def test_what_depends_on_the_host_comes_behind_what_is_hardly_slower_without_it() -> None:
    model, machine = known_as("Qwen/Qwen2.5-0.5B"), machine_named("1x4090")[0]
    rows = rows_of(decide({"model.name": model.name}, machine, model=model), machine, model)
    assert rows[0].name == "single"
    assert min(rows, key=lambda row: row.seconds).work.optimizer_offloaded


def test_a_default_real_batch_can_be_divided() -> None:
    model = known_as("Qwen/Qwen2.5-7B")
    for gpus, real in (("3xH100", 72), ("6xH100", 72), ("8xH100", 64)):
        made = decide({"model.name": model.name}, machine_named(gpus)[0], model=model)
        assert made.plan.batch.real_batch_size == real
        assert abs(real - 64) / 64 <= 0.15


def test_reasons_of_what_is_kept() -> None:
    few = decide({"model.name": "Qwen/Qwen2.5-7B"}, machine_named("8xL40S")[0], model=known_as("Qwen/Qwen2.5-7B"))
    reason = why(few, "model.activation_checkpointing")
    assert reason.startswith("fastest in the forecast: at micro-batch 4, ")
    assert reason.endswith(" does not")
    assert models.known("Qwen/Qwen2.5-7B") is not None
    assert test_decide.machine("cpu").gpus == ()


def test_init_and_plan_agree(tmp_path: Path) -> None:
    """From the command line, with the machine and the model by name."""
    model, gpus = "Qwen/Qwen2.5-7B", "8xL40S"
    table = trainwiz("plan", "--model", model, "--gpus", gpus, "--task", "sft", "--json")
    row = json.loads(table.out)["rows"][0]
    folder = str(tmp_path / "a")
    init = trainwiz("init", folder, "--defaults", "--yes", "--machine", gpus, "--model", model, "--task", "sft")
    assert init.code == 0, init.err
    plan = yaml.safe_load((tmp_path / "a" / "trainwiz.yaml").read_text())
    assert (row["strategy"], row["per_device_batch_size"], row["gradient_accumulation_steps"]) == (
        f"zero{plan['strategy']['zero_stage']}",
        plan["batch"]["per_device_batch_size"],
        plan["batch"]["gradient_accumulation_steps"],
    )
    assert row["activation_checkpointing"] == plan["model"]["activation_checkpointing"]


def test_a_measured_time_corrects_seconds_and_speed_alike() -> None:
    """These GPUs' own updates took twice as long as forecast."""
    model, machine = known_as(NAMES[1]), machine_named("8xH100")[0]
    row = rows_of(decide({"model.name": model.name}, machine, model=model), machine, model)[0]
    slower = replace(row, time_factor=2.0)
    assert row.tokens_per_second
    assert slower.tokens_per_second == row.tokens_per_second / 2
    assert slower.seconds == row.seconds * 2
