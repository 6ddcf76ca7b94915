"""Routed experts beside an adapter: 16 bits under QLoRA, adapters of their own, and a sum of both in each layer."""

from dataclasses import replace
from typing import Any

import pytest
from plans import make

from trainwiz.estimate import estimate
from trainwiz.estimate.device import micro_batch, needs, training_of
from trainwiz.estimate.state import work_of
from trainwiz.models import Transformer, known
from trainwiz.plan import Plan
from trainwiz.strategies import labeled

_VALUES = {
    "task": "sft",
    "model__name": "org/model",
    "model__from_scratch": False,
    "precision__mixed_precision": "bf16",
}
_EXPERTS = 48 * 128 * 3 * 2048 * 768
"""Weights of the routed experts of Qwen3-30B-A3B."""


def shape() -> Transformer:
    found = known("Qwen/Qwen3-30B-A3B")
    assert found
    return found


def adapted(**values: Any) -> Plan:
    return make(**{**_VALUES, "model__adapter": "qlora", **values})


@pytest.mark.parametrize(
    ("strategy", "ranks", "each"),
    [("single", 1, 4.127 / 8), ("ddp", 1, 4.127 / 8), ("zero2", 1, 4.127 / 8), ("zero3", 8, 2), ("fsdp", 8, 4.127 / 8)],
)
def test_experts_are_packed_unless_zero_3_gathers_them(strategy: str, ranks: int, each: float) -> None:
    work = work_of(adapted(strategy__kind="ddp", machine__num_processes=8), shape().parameters, shape())
    frozen = replace(work, trained=0, frozen_experts=True)
    kept = needs(labeled(strategy), frozen).state * ranks
    others = shape().parameters - _EXPERTS
    assert each * _EXPERTS + 0.5 * others < kept < each * _EXPERTS + 2 * others


def test_the_packed_experts_of_a_layer_are_whole_while_it_computes() -> None:
    work = replace(work_of(adapted(strategy__kind="ddp"), shape().parameters, shape()), frozen_experts=True)
    dense = replace(work, adapter="lora")
    buffers = [needs(labeled("ddp"), each).moments["backward"]["buffers"] for each in (work, dense)]
    assert buffers[0] - buffers[1] == pytest.approx(2 * _EXPERTS / 48, rel=0.001)


def test_the_experts_of_a_layer_are_whole_while_it_computes() -> None:
    """Beside two layers that are gathered in four bits, and the modules outside of them in 16."""
    training = replace(training_of(work_of(adapted(), shape().parameters, shape())), whole_gradients=False)
    assert training.unpacked_bytes == pytest.approx(2 * _EXPERTS / 48, rel=0.001)
    assert training.packed_layer == pytest.approx(4.127 / 8 * shape().largest_layer, rel=0.01)
    fsdp = labeled("fsdp")
    assert fsdp.buffer_bytes(training) == 2 * training.root + 2 * training.packed_layer + training.unpacked_bytes


def test_zero_3_loads_experts_in_16_bits_onto_each_gpu() -> None:
    plan = adapted(strategy__kind="deepspeed", strategy__zero_stage=3, machine__num_processes=8)
    assert 2 * _EXPERTS < estimate(plan, shape().parameters, shape()).whole_bytes_per_rank < 2 * shape().parameters


def test_each_expert_has_an_adapter() -> None:
    """Of rank 16; 32 for the gate and the up projection, which are one tensor."""
    each = 32 * (2048 + 2 * 768) + 16 * (2048 + 768)
    plan = adapted(model__adapter="lora")
    trained = training_of(work_of(plan, shape().parameters, shape())).parameters
    assert trained == pytest.approx(48 * 128 * each, rel=0.03)
    few = adapted(model__adapter="lora", model__lora_targets="q_proj,v_proj")
    assert training_of(work_of(few, shape().parameters, shape())).parameters < trained / 50


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_layer_keeps_the_sum_of_its_experts_and_their_adapters(checkpointing: str) -> None:
    """Seen with hooks on saved tensors: 16 experts in 3 layers, 4.72 MB in 16 bits, and 4.76 MB more with adapters."""
    layer = 2 * _EXPERTS / 48
    plan = adapted(model__activation_checkpointing=checkpointing)
    work = work_of(plan, shape().parameters, shape())
    more, less = (micro_batch(labeled("ddp"), replace(work, frozen_experts=frozen)) for frozen in (False, True))
    assert more.saved - less.saved == pytest.approx(48 * layer if checkpointing == "none" else 0, rel=0.01)
    assert more.live - less.live == pytest.approx((1 if checkpointing == "none" else 2) * layer, rel=0.01)
