"""Frozen parameters and disk, by formula: the same numbers as real models under the generated frozen.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from plans import make

from trainwiz import models
from trainwiz.estimate import disk, estimate
from trainwiz.estimate.frozen import frozen_parameters, head_is_frozen, named
from trainwiz.estimate.state import device_needs

SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "tie_word_embeddings": False,
    },
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 300, "n_positions": 32},
}


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    """The models themselves, without memory."""
    import torch
    import transformers

    with torch.device("meta"):
        return {
            name: transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **sizes))
            for name, sizes in SIZES.items()
        }


@pytest.mark.parametrize(
    ("family", "frozen", "tolerance"),
    [
        ("llama", "embed", 0.0),
        ("llama", "lm_head", 0.0),
        ("llama", "layers.1.", 0.0),
        ("llama", "layers.1", 0.0),
        ("llama", "mlp", 0.0),
        ("llama", "self_attn", 0.0),
        ("llama", "k_proj, layers.0.", 0.0),
        ("llama", "layers.*.mlp.up", 0.0),
        ("gpt2", "wte", 0.0),
        ("gpt2", "h.0.", 0.0),
        ("gpt2", "mlp", 0.01),  # biases have no names of their own
    ],
)
def test_the_count_is_that_of_the_generated_script(
    built: dict[str, Any], family: str, frozen: str, tolerance: float
) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "train_templates" / "parts"))
    try:
        from frozen import freeze
    finally:
        sys.path.pop(0)
    model = built[family]
    freeze(model, frozen)
    truth = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    model.requires_grad_(True)
    shape = models.of_config({"model_type": family, **SIZES[family]})
    assert shape
    assert shape.parameters == sum(p.numel() for p in model.parameters()) == sum(n for _, n in named(shape))
    assert frozen_parameters(shape, frozen.split(",")) == pytest.approx(truth, rel=tolerance or None, abs=0)


def test_what_is_in_no_name_freezes_nothing() -> None:
    shape = models.of_config({"model_type": "llama", **SIZES["llama"]})
    assert shape
    assert frozen_parameters(shape, ["vision_tower"]) == 0


def test_frozen_parameters_have_weights_and_nothing_else() -> None:
    shape = models.known("llama-3.1-8b")
    assert shape
    whole, part = (
        estimate(
            make(task="causal_lm", model__name="meta-llama/Llama-3.1-8B", model__frozen=frozen), 8_030_261_248, shape
        )
        for frozen in (None, "embed,lm_head")
    )
    tables = 2 * 128_256 * 4096
    assert whole.device_bytes_per_rank - part.device_bytes_per_rank == 12 * tables
    assert whole.checkpoint_bytes - part.checkpoint_bytes == 8 * tables


def test_a_frozen_head_has_no_gradient() -> None:
    """Where the loss computes the head's gradient, chunk by chunk, and where FSDP2 reduces it."""
    shape = models.known("llama-3.1-8b")
    assert shape
    values = {"task": "causal_lm", "model__name": "meta-llama/Llama-3.1-8B", "model__from_scratch": False}
    values |= {"machine__device": "cuda", "precision__mixed_precision": "bf16", "batch__sequence_length": 4096}
    head = 128_256 * 4096

    def buffers(kind: str, frozen: str | None, moment: str) -> int:
        plan = make(**values, strategy__kind=kind, machine__num_processes=8, model__frozen=frozen)
        return device_needs(plan, 8_030_261_248, shape).moments[moment]["buffers"]  # type: ignore[index]

    # In DDP's loss the gradient has the type of the weights, under FSDP2 that of the computation.
    for kind, moment, each in (
        ("ddp", "loss", 4),
        ("fsdp", "loss", 2),
        ("fsdp", "backward", 2),
        ("fsdp", "reduction", 6),
    ):
        trained, frozen, embeddings = (buffers(kind, it, moment) for it in (None, "lm_head", "embed_tokens"))
        assert trained - frozen >= each * head, (kind, moment)
        assert embeddings > frozen, (kind, moment)
    assert head_is_frozen(shape, ["layers.0.", "head"])
    assert not head_is_frozen(shape, ["embed"])
    tied = models.known("qwen2.5-0.5b")
    assert tied
    assert tied.tied
    assert head_is_frozen(tied, ["embed"])


def test_the_disk_holds_one_checkpoint_more_than_are_kept() -> None:
    assert [disk.saves(updates, 100) for updates in (1, 100, 101, 1000)] == [1, 1, 2, 10]
    assert disk.saves(1000, 0) == 1
    assert disk.disk_bytes(10, 3, made=10, limit=3) == 43
    assert disk.disk_bytes(10, 3, made=2, limit=3) == 23
    assert disk.disk_bytes(10, 3, made=4, limit=None) == 43
