"""Forecasts beside what was measured, the likely part of a miss, and a run as one anonymous row."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwiz.record import shared
from trainwiz.record.forecast import compared, measurements, seconds_per_update
from trainwiz.record.run import Recorded

GIB = 2**30
FORECAST = {
    "parameters": 8_030_261_248,
    "allocated_bytes": 40 * GIB,
    "reserved_bytes": 43 * GIB,
    "moment": "step",
    "parts": {"state": 38 * GIB, "buffers": 2 * GIB},
    "layers_known": True,
    "host_bytes": None,
    "seconds_per_update": 2.0,
    "seconds": {"compute": 0.5, "memory": 0.1, "launches": 0.1, "communication": 1.2, "step": 0.1},
    "checkpoint_bytes": 96 * GIB,
}


def outcome(forecast: dict[str, Any] | None = None, **measured: Any) -> dict[str, Any]:
    return {"forecast": {**FORECAST, **(forecast or {})}, "measured": measured}


def test_the_largest_rank_is_compared() -> None:
    ranks = {"0": {"host_bytes": 7, "allocated_bytes": 39 * GIB}, "1": {"allocated_bytes": 41 * GIB}}
    found = outcome(ranks=ranks, seconds_per_update=2.1)
    assert measurements(found) == {"allocated_bytes": 41 * GIB, "host_bytes": 7, "seconds_per_update": 2.1}
    memory, time = compared(found)
    assert (memory.name, memory.missed, memory.likely) == ("allocated_bytes", False, None)
    assert memory.error == pytest.approx(0.025)
    assert (time.name, time.missed) == ("seconds_per_update", False)


@pytest.mark.parametrize(
    ("forecast", "measured", "name", "likely"),
    [
        ({}, {"allocated_bytes": 60 * GIB}, "allocated_bytes", "weights, gradients and optimizer state"),
        ({"moment": "loss", "parts": {"state": 10, "activations": 30}}, {"allocated_bytes": 60 * GIB}, "", "logits"),
        ({"moment": "loss"}, {"allocated_bytes": 20 * GIB}, "allocated_bytes", "samples are shorter"),
        ({"layers_known": False}, {"allocated_bytes": 60 * GIB}, "allocated_bytes", "layers are unknown"),
        ({}, {"allocated_bytes": 40 * GIB, "reserved_bytes": 55 * GIB}, "reserved_bytes", "gaps between"),
        ({"host_bytes": 9e8, "parts": {"state": 1e8}}, {"host_bytes": 2e9}, "host_bytes", "libraries and data"),
    ],
)
def test_a_miss_names_the_part_that_it_likely_comes_from(
    forecast: dict[str, Any], measured: dict[str, Any], name: str, likely: str
) -> None:
    missed = [pair for pair in compared(outcome(forecast, ranks={"0": measured})) if pair.missed]
    assert len(missed) == 1
    assert missed[0].name == (name or "allocated_bytes")
    assert likely in str(missed[0].likely)


@pytest.mark.parametrize(("held", "compares"), [(20, False), (60, True)])
def test_a_run_without_an_update_is_compared_only_where_it_held_more(held: int, compares: bool) -> None:
    """A mistake in task.py ends it before memory is taken: no forecast was missed. Running out of memory is a miss."""
    ranks = {"0": {"allocated_bytes": held * GIB}}
    ended = outcome(ranks=ranks)
    assert compared({**ended, "first_update_seconds": 12.5})
    assert bool(compared({**ended, "first_update_seconds": None})) == compares


def test_a_slow_update_names_its_longest_part() -> None:
    (time,) = compared(outcome(seconds_per_update=2.5))
    assert str(time.likely) == "communication between ranks"
    assert compared(outcome(seconds_per_update=2.29))[0].likely is None


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"forecast": None, "measured": None},
        {"forecast": FORECAST},
        {"forecast": [], "measured": 3},
        {"forecast": {"allocated_bytes": "x"}, "measured": {"ranks": {"0": {"allocated_bytes": 5}}}},
        {"forecast": {"allocated_bytes": 0}, "measured": {"ranks": {"0": {"allocated_bytes": 5}}}},
        {"forecast": FORECAST, "measured": {"ranks": {"0": [1]}, "seconds_per_update": math.nan}},
        {"forecast": FORECAST, "measured": {"ranks": {"0": {"allocated_bytes": True}}, "seconds_per_update": -1}},
    ],
)
def test_damaged_records_compare_nothing(record: dict[str, Any]) -> None:
    assert compared(record) == ()


def test_the_first_record_is_the_warm_up() -> None:
    records = [{"update": u, "seconds_per_update": s} for u, s in enumerate((9.0, 1.0, 3.0, 2.0))]
    assert seconds_per_update(records) == 2.0
    assert seconds_per_update(records[:1]) == 9.0
    assert seconds_per_update([{"update": 1}]) is None


SECRET = "/home/mara/secret-project"
PLAN = {
    "task": "sft",
    "model": {"name": f"{SECRET}/llama-3.1-8b", "activation_checkpointing": "full", "adapter": "none"},
    "machine": {"num_processes": 8, "num_machines": 1},
    "strategy": {"kind": "deepspeed", "zero_stage": 3, "offload_optimizer_device": "cpu"},
    "precision": {"mixed_precision": "bf16", "weights": "float32"},
    "batch": {"per_device_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_length": 2048},
    "data": {"train": f"{SECRET}/data.jsonl", "packing": True},
    "optimizer": {"name": "adamw"},
}


def run(plan: object = PLAN, **changes: Any) -> Recorded:
    command = {
        "plan": plan,
        "hostname": "secret-host",
        "cwd": SECRET,
        "machine": {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}]},
        "versions": {"trainwiz": "1.0"},
    }
    ranks = {"0": {"allocated_bytes": 30 * GIB, "reserved_bytes": 32 * GIB, "host_bytes": 5 * GIB}}
    records = [{"update": u, "tokens_per_second": 32_000.0} for u in (1, 2)]
    return Recorded(name="r", command=command, outcome=outcome(ranks=ranks), records=records, **changes)


def test_a_shared_row_is_read_by_the_benchmark_and_says_nothing_of_its_owner() -> None:
    line = shared.row(run())
    assert line
    assert "secret" not in line
    assert "mara" not in line
    (row,) = csv.DictReader([shared.header(), line])
    assert (row["model"], row["params_b"], row["strategy"]) == ("llama-3.1-8b", "8.03", "zero3 offload-opt full")
    assert (row["peak_gib"], row["tokens_per_s_per_gpu"], row["gpus"]) == ("32.000", "4000.0", "8")
    root = Path(__file__).parents[2]
    sys.path.insert(0, str(root / "benchmarks"))
    try:
        from published.recipes import recipe
    finally:
        sys.path.remove(str(root / "benchmarks"))
    read = recipe(row)
    assert (read.strategy.label, read.meter, read.exact) == ("zero3", "reserved", True)
    assert (read.work.samples, read.work.length, read.work.world) == (2, 2048, 8)
    assert read.work.optimizer_offloaded
    assert not read.work.parameters_offloaded
    assert read.work.accumulates


def test_an_unknown_model_keeps_its_name_to_itself() -> None:
    line = shared.row(run({**PLAN, "model": {"name": "acme/secret-7b"}}))
    assert line
    assert "acme" not in line


@pytest.mark.parametrize("plan", [None, 3, {}])
def test_what_was_not_measured_is_no_row(plan: object) -> None:
    assert shared.row(Recorded(name="r", command={"plan": plan}, outcome={})) is None
    assert (shared.row(run(plan)) is None) == (plan != {})
