"""What DeepSpeed's ZeRO has beside its state, as its source says and a plan's own keys change it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plans import make

from trainwiz.estimate.device import Work, needs
from trainwiz.estimate.state import work_of
from trainwiz.models import known
from trainwiz.strategies import Training, labeled

B = 1_000_000_000


def planned(stage: int, **keys: Any) -> Work:
    llama = known("llama-3-8b")
    assert llama
    plan = make(
        task="sft",
        model__name="some/llama",
        model__from_scratch=False,
        strategy__kind="deepspeed",
        strategy__zero_stage=stage,
        precision__mixed_precision="bf16",
        deepspeed={f"zero_optimization.{key}": value for key, value in keys.items()},
    )
    return work_of(plan, llama.parameters, llama)


def test_a_bucket_is_copied_only_when_it_is_full() -> None:
    """At the loss, the two buckets that overlap are there; LLaMA 7B with an offloaded optimizer: 16.9 GiB measured."""
    zero2, shape = labeled("zero2"), Training(parameters=B, world=8, half=True, bucket=B // 10)
    assert zero2.loss_buffer_bytes(shape) == 2 * 2 * B // 10
    assert zero2.buffer_bytes(shape) == 3 * 2 * B // 10
    alone = replace(shape, overlaps=False)
    assert zero2.loss_buffer_bytes(alone) == zero2.buffer_bytes(alone) == 2 * B // 10
    assert labeled("zero0").loss_buffer_bytes(shape) == labeled("zero0").buffer_bytes(shape)


def test_a_plan_s_own_limit_of_gathered_weights_counts() -> None:
    zero3 = labeled("zero3")
    usual = needs(zero3, planned(3)).moments["loss"]["buffers"]
    limited = planned(3, stage3_max_live_parameters=3e7, stage3_prefetch_bucket_size=2e7)
    assert (limited.live, limited.prefetch) == (30_000_000, 20_000_000)
    spared = usual - needs(zero3, limited).moments["loss"]["buffers"]
    assert spared == 2 * (B - 30_000_000) + 2 * (50_000_000 - 20_000_000)


def test_linear_layers_of_pytorch_keep_what_zero_3_gathered() -> None:
    """LLaMA 7B without checkpointing takes all weights in 16 bits more: 75.7 GiB measured, 64 without them."""
    zero3, llama = labeled("zero3"), known("llama-3-8b")
    assert llama
    plain = replace(planned(3), checkpointing="none")
    kept = replace(planned(3, memory_efficient_linear=False), checkpointing="none")
    for moment in ("loss", "backward"):
        more = needs(zero3, kept).moments[moment]["buffers"] - needs(zero3, plain).moments[moment]["buffers"]
        assert more == 2 * llama.linear_weights
    again = replace(kept, checkpointing="full")
    assert needs(zero3, again) == needs(zero3, replace(again, saves_gathered=False))
    assert needs(labeled("zero2"), kept) == needs(labeled("zero2"), plain)
