"""MFU, GPU memory and the wait for data: the formula counts what PyTorch counts, and nothing waits for a GPU."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_rows import CUDA, decoder, three_documents
from test_tasks import load
from torch.utils.flop_counter import FlopCounterMode

from trainwiz.estimate.datasheets import MODELS
from trainwiz.estimate.gpus import gpu_model

NAMES = (
    "NVIDIA H200",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA GeForce RTX 4090",
    "AMD Instinct MI300X",
)
MEMORY = {
    "allocated_bytes.all.current": 2.0,
    "allocated_bytes.all.peak": 9.0,
    "reserved_bytes.all.current": 5.0,
    "allocated_bytes.large_pool.peak": 7.0,
}


def flops_of(tmp_path: Path, **changes: Any) -> Any:
    return load(tmp_path, "causal_lm", "flops", **CUDA, **changes)


def counted(model: Any, inputs: torch.Tensor) -> int:
    """What PyTorch counts of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        model(inputs).logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "qwen3", "olmo2"])
def test_the_formula_counts_what_pytorch_counts(kind: str, tmp_path: Path) -> None:
    flops, model = flops_of(tmp_path), decoder(kind)
    model.set_attn_implementation("eager")  # whose products are all counted
    inputs = torch.randint(37, (2, 12))
    per_token, per_pair = flops.flops_per_token(model), flops.flops_per_pair(model)
    assert flops.needed({"labels": inputs}, per_token, per_pair) == counted(model, inputs)


def test_frozen_weights_need_no_gradient_of_their_own(tmp_path: Path) -> None:
    flops, model = flops_of(tmp_path), decoder("llama")
    whole = flops.flops_per_token(model)
    for weight in model.parameters():
        weight.requires_grad = False
    assert flops.flops_per_token(model) == whole * 4 / 6


def test_only_experts_that_a_token_is_sent_to_count(tmp_path: Path) -> None:
    flops, model = flops_of(tmp_path), decoder("mixtral")
    experts = sum(w.numel() for name, w in model.named_parameters() if ".experts." in name)
    others = sum(w.numel() for name, w in model.named_parameters() if w.dim() > 1) - experts - 37 * 32  # the embeddings
    config = model.config
    assert 0 < config.num_experts_per_tok < config.num_local_experts
    active = experts * config.num_experts_per_tok / config.num_local_experts
    assert flops.flops_per_token(model) == 6 * (others + active)


def test_weights_in_other_forms_count_as_what_they_stand_for(tmp_path: Path) -> None:
    """ZeRO 3 leaves a flat shard; bitsandbytes, and what FSDP2 shards of it, half a byte for each number."""
    flops, model = flops_of(tmp_path), decoder("llama")
    whole = flops.flops_per_token(model)
    shard = torch.nn.Parameter(torch.zeros(0))
    shard.ds_shape = torch.Size((8, 4))  # type: ignore[attr-defined]
    assert flops.products(shard) == 6 * 32
    assert flops.products(torch.nn.Parameter(torch.zeros(32))) == 0
    matrix = model.model.layers[0].mlp.down_proj
    size = matrix.weight.numel()
    for shape in ((size // 2, 1), (size,)):
        matrix.weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.uint8), requires_grad=False)
        assert flops.flops_per_token(model) == whole - 2 * size


def test_experts_in_four_bits_count_as_what_they_stand_for(tmp_path: Path) -> None:
    """Their bytes have one dimension, in which a vector's numbers are none."""
    values = {"model__name": "org/model", "model__from_scratch": False, "model__adapter": "qlora"}
    flops: Any = load(tmp_path, "sft", "flops", machine__device="cuda", strategy__kind="single", **values)
    model = decoder("mixtral").requires_grad_(False)
    whole = flops.flops_per_token(model)
    sys.modules["experts"].pack_experts(model, [])
    assert flops.flops_per_token(model) == whole


def test_documents_are_apart_and_padding_is_not_counted(tmp_path: Path) -> None:
    flops = flops_of(tmp_path)
    inputs, positions = three_documents()  # 7, 9 and 4 tokens, twice
    labels = inputs.clone()
    assert flops.needed({"labels": labels, "positions": positions}, 0, [(1.0, 1 << 40)]) == 2 * (49 + 81 + 16)
    labels[:, 16:] = flops.IGNORED  # the last is padding
    labels[1] = flops.IGNORED  # and the last row only fills the batch
    labels[0, 2] = flops.IGNORED  # a token that is given and not learned
    batch = {"labels": labels, "positions": positions}
    assert flops.needed(batch, 1.0, []) == 16
    assert flops.needed(batch, 0, [(1.0, 1 << 40)]) == 49 + 81
    near = sum(2 * min(place, 3) + 1 for n in (7, 9) for place in range(n))
    assert flops.needed(batch, 0, [(1.0, 4)]) == near


def test_layers_with_a_window_reach_no_further(tmp_path: Path) -> None:
    flops = flops_of(tmp_path)
    assert sorted(flops.flops_per_pair(decoder("gemma2"))) == [(12.0 * 32, 4), (12.0 * 32, flops.EVERYTHING)]
    assert flops.flops_per_pair(decoder("llama")) == [(12.0 * 32 * 2, flops.EVERYTHING)]


@pytest.mark.parametrize("precision", ["bf16", "no"])
def test_a_script_knows_the_gpus_that_trainwiz_knows(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flops = load(tmp_path, "causal_lm", "flops", machine__device="cuda", precision__mixed_precision=precision)
    assert len(flops.PEAK_TFLOPS) == len(MODELS)
    for name in NAMES:
        known = gpu_model(name)
        assert known is not None
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
        assert flops.peak() == pytest.approx(known.single_flops if precision == "no" else known.half_flops)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Graphics Device")
    assert flops.peak() is None
    # A rehearsal trains a project for GPUs on the CPU.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: 1 / 0)
    assert flops.peak() is None
    assert flops.share_of_peak(decoder("llama")) is None


class Ranks:
    """Two ranks, of which the other one waits longer and computes less."""

    def collect(self, numbers: list[float]) -> list[list[float]]:
        self.own = numbers
        return [numbers, [0.75, *(3.0 for _ in numbers[1:-1]), numbers[-1] / 2]]


@pytest.mark.parametrize("known", [True, False])
def test_a_record_says_what_the_slowest_rank_waits_for_and_the_fullest_gpu_holds(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = load(tmp_path, "causal_lm", "meter", **CUDA)
    now = [100.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: MEMORY)

    def slow_batches() -> Any:
        while True:
            now[0] += 0.5
            yield {"labels": None}, 7

    config: Any = type("Config", (), {"gradient_accumulation_steps": 2})
    ranks = Ranks()
    metered = meter.Meter(config, ranks, slow_batches())
    metered.flops = (lambda _batch: 0.4) if known else None
    for _ in range(2):
        assert [count for _, count in metered.fetch()] == [7, 7]
        now[0] += 1.0
        metered.count += 14
    record = metered.record()
    assert record.pop("mfu", None) == (pytest.approx((0.4 + 0.2) / 2) if known else None)
    assert record == {
        "tokens_per_second": 28 / 4,
        "seconds_per_update": 2.0,
        "data_wait_share": 0.75,
        "gpu_memory_allocated_bytes": 3.0,
        "gpu_memory_reserved_bytes": 5.0,
        "gpu_memory_peak_bytes": 9.0,
    }
    metered.fetch()
    now[0] += 2.0
    record = metered.record()
    assert (record["tokens_per_second"], record["seconds_per_update"]) == (0.0, 3.0), "a record begins the next one"
    own = (ranks.own[0], ranks.own[-1])
    assert own == (pytest.approx(1.0 / 3.0), pytest.approx(0.8 / 3.0) if known else 0.0), "of one update alone"


def test_the_bar_shows_what_there_is(tmp_path: Path) -> None:
    metrics = load(tmp_path, "causal_lm", "metrics", **CUDA)
    record = {"loss": 1.23456, "lr": 3e-4, "mfu": 0.414, "gpu_memory_peak_bytes": 3 * 2**30, "data_wait_share": 0.031}
    shown = {"loss": "1.235", "lr": "0.0003", "mfu": "41.4%", "gpu": "3.0GiB", "data": "3%"}
    assert metrics.shown(record) == shown
    assert metrics.shown({"loss": None, "lr": 1.0, "mfu": None, "data_wait_share": 0.001}) == {"lr": "1"}
