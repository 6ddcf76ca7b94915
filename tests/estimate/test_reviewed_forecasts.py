"""The forecasts of typical runs, as reviewed in tests/golden/forecasts.yaml.

Other tests compare formulas with what was measured, within a few percent; here no number changes unnoticed.
"""

from __future__ import annotations

from typing import Any

import plans
import pytest
import reviewed

from trainwiz import models, strategies
from trainwiz.estimate.device import needs
from trainwiz.estimate.forecast import forecast
from trainwiz.estimate.gpus import gpu_model
from trainwiz.estimate.loading import load_bytes
from trainwiz.estimate.state import estimate, work_of
from trainwiz.plan import Plan

TUNING = {"task": "sft", "data.train": "talks.jsonl", "precision.mixed_precision": "bf16", "model.from_scratch": False}
LONG = {"batch.sequence_length": 4096, "batch.per_device_batch_size": 2, "batch.real_batch_size": 64}
CASES: dict[str, tuple[str, str, int, str, dict[str, Any]]] = {
    "1B alone": ("llama-3.2-1b", "H100", 1, "single", {}),
    "1B under DDP, compiled": ("llama-3.2-1b", "A100-80G", 4, "ddp", {"model.compile": True}),
    "1B in fp32": ("llama-3.2-1b", "A100-80G", 4, "ddp", {"precision.mixed_precision": "no"}),
    "1B in fp16": ("llama-3.2-1b", "V100", 8, "zero2", {"precision.mixed_precision": "fp16"}),
    "0.5B, eager attention": ("qwen2.5-0.5b", "T4", 2, "ddp", {"model.attention": "eager"}),
    "8B under ZeRO 1": ("llama-3.1-8b", "H200", 8, "zero1", {}),
    "8B under ZeRO 2, offloaded": ("llama-3.1-8b", "4090", 4, "zero2", {"strategy.offload_optimizer_device": "cpu"}),
    "8B under ZeRO 3": ("llama-3.1-8b", "H100", 8, "zero3", {"model.activation_checkpointing": "full"}),
    "8B under ZeRO 3, all on the host": (
        "llama-3.1-8b",
        "L40S",
        4,
        "zero3",
        {"strategy.offload_optimizer_device": "cpu", "strategy.offload_param_device": "cpu"},
    ),
    "8B under FSDP, two machines": (
        "llama-3.1-8b",
        "H100",
        16,
        "fsdp",
        {"machine.num_machines": 2, "model.activation_checkpointing": "selective", "strategy.sync_each_batch": True},
    ),
    "8B under FSDP in fp8": ("llama-3.1-8b", "H100", 8, "fsdp", {"precision.mixed_precision": "fp8"}),
    "7B, inputs on the host": ("qwen2.5-7b", "A100-40G", 8, "fsdp", {"model.activation_checkpointing": "offload"}),
    "7B with LoRA": ("qwen2.5-7b", "4090", 2, "ddp", {"model.adapter": "lora", "model.lora_dropout": 0.1}),
    "7B with LoRA of attention": (
        "qwen2.5-7b",
        "A10G",
        4,
        "fsdp",
        {"model.adapter": "lora", "model.lora_targets": "q_proj,k_proj,v_proj,o_proj", "model.lora_rank": 64},
    ),
    "7B with DoRA": ("qwen2.5-7b", "L40S", 1, "single", {"model.adapter": "lora", "model.lora_dora": True}),
    "7B with QLoRA": ("qwen2.5-7b", "3090", 1, "single", {"model.adapter": "qlora"}),
    "70B with QLoRA, sharded": ("llama-2-70b", "4090", 4, "fsdp", {"model.adapter": "qlora"}),
    "a mixture": ("mixtral-8x7b", "H100", 8, "zero3", {"model.activation_checkpointing": "full"}),
    "a mixture with LoRA": ("qwen3-30b-a3b", "H100", 4, "fsdp", {"model.adapter": "lora"}),
    "pairs": ("qwen2.5-1.5b", "A100-80G", 4, "ddp", {"task": "preference", "data.train": "pairs.jsonl"}),
    "1B under LowLevelZero": ("llama-3.2-1b", "A100-80G", 4, "colossal_zero2", {}),
    "1B under Gemini": ("llama-3.2-1b", "A100-80G", 4, "gemini", {}),
    "AdamW in 8 bits": ("llama-3.2-3b", "4090", 2, "ddp", {"optimizer.name": "adamw_8bit"}),
    "weights in bf16": ("llama-3.2-3b", "4090", 1, "single", {"precision.weights": "bfloat16"}),
    "ranks on the CPU": ("qwen2.5-0.5b", "", 2, "ddp", {"precision.mixed_precision": "no"}),
}


def planned(name: str) -> Plan:
    """The plan of a case."""
    model, gpu, ranks, label, more = CASES[name]
    kind, stage = ("deepspeed", int(label[-1])) if label.startswith("zero") else (label, None)
    values = {
        **TUNING,
        **LONG,
        "model.name": f"org/{model}",
        "machine.device": "cuda" if gpu else "cpu",
        "machine.num_processes": ranks,
        "batch.gradient_accumulation_steps": 64 // (2 * ranks),
        "strategy.kind": kind,
        "strategy.zero_stage": stage,
        "engine": strategies.labeled(label).engine,
        **more,
    }
    return plans.make(**{key.replace(".", "__"): value for key, value in values.items()})


def told(name: str) -> dict[str, Any]:
    """All numbers: MiB of each part at each moment, and seconds to four digits."""
    model, gpu, *_ = CASES[name]
    shape, plan = models.known(model), planned(name)
    assert shape
    made = forecast(plan, shape.parameters, shape, gpu_model(gpu) if gpu else None)
    whole = estimate(plan, shape.parameters, shape)
    need = needs(strategies.of(plan), work_of(plan, shape.parameters, shape))
    return {
        **{moment: " + ".join(_mib(size) for size in parts.values()) for moment, parts in need.moments.items()},
        "peak": made.moment,
        "reserved": _mib(made.reserved_bytes),
        "host": f"{_mib(made.host_bytes)} of a rank, {_mib(whole.host_bytes_per_machine)} of a machine",
        "loading": _mib(load_bytes(plan, shape.parameters, shape)),
        "checkpoint": _mib(made.checkpoint_bytes),
        "seconds": " ".join(f"{part} {value:.4g}" for part, value in (made.seconds or {}).items()),
        "update": f"{made.seconds_per_update:.4g}" if made.seconds_per_update else "-",
    }


def _mib(size: float | None) -> str:
    return "-" if size is None else f"{size / 2**20:.1f}"


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> dict[str, Any]:
    return reviewed.table("forecasts", lambda: {name: told(name) for name in CASES}, request.config)


@pytest.mark.parametrize("name", CASES)
def test_a_forecast_is_as_reviewed(name: str, golden: dict[str, Any]) -> None:
    assert told(name) == golden[name]
    assert len(golden) == len(CASES)
