"""How people spell the fields of a published measurement."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import forecast  # noqa: E402
from published import spelling  # noqa: E402
from published.recipes import Recipe, recipe  # noqa: E402
from published.shapes import shape  # noqa: E402

from trainwiz.estimate.gpus import gpu_model  # noqa: E402

PLAIN = {
    "source": "somebody/something",
    "model": "meta-llama/Llama-3.1-8B",
    "params_b": "8.03",
    "gpu": "h100_80gb",
    "gpus": "8",
    "strategy": "fsdp2 full",
    "precision": "bf16",
    "micro_batch": "2",
    "seq_len": "4096",
    "checkpointing": "full",
    "extras": "",
    "peak_gib": "",
    "tokens_per_s_per_gpu": "",
    "mfu": "",
}


def understood(**fields: str) -> Recipe:
    return recipe({**PLAIN, **fields})


@pytest.mark.parametrize(
    ("text", "value", "exact"),
    [
        ("2048", 2048, True),
        ("2,048", 2048, True),
        ("4k", 4096, True),
        ("32K", 32768, True),
        ("1M", 2**20, False),
        ("8.0", 8, True),
        ("8192 (packed)", 8192, True),
        ("2048 tokens", 2048, True),
        ("4?", 4, False),
        ("~512", 512, False),
        ("<= 2048", 2048, False),
        ("up to 1024", 1024, False),
    ],
)
def test_an_amount_is_a_number_and_whether_it_is_exact(text: str, value: float, exact: bool) -> None:
    assert spelling.amount(text) == spelling.Amount(value=value, exact=exact)


@pytest.mark.parametrize("text", ["", "auto", "-1", "long"])
def test_what_is_no_amount(text: str) -> None:
    assert spelling.amount(text) is None


@pytest.mark.parametrize(
    ("gpus", "gpu", "more", "ranks", "machine"),
    [
        ("8", "h100", "", 8, 8),
        ("8x", "h100", "", 8, 8),
        ("x8", "h100", "", 8, 8),
        ("2x8", "h100", "", 16, 8),
        ("2 nodes x 8", "h100", "", 16, 8),
        ("4 nodes", "h100", "", 32, 8),
        ("16", "h100", "4 nodes", 16, 4),
        ("16 GPUs", "h100", "machine of 4", 16, 4),
        ("1,024", "h100", "", 1024, 8),
        ("", "8xH100", "", 8, 8),
        ("", "4 x A10G", "", 4, 8),
        ("", "h100", "", 1, 8),
        ("", "a100_80gb", "", 1, 8),
        ("0", "h100", "", 1, 8),
    ],
)
def test_the_ranks(gpus: str, gpu: str, more: str, ranks: int, machine: int) -> None:
    assert spelling.world(gpus, gpu, more) == spelling.World(ranks=ranks, machine=machine)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("a100_80gb?", "A100-80GB"),
        ("A100 PCIe 80GB", "A100-PCIe-80GB"),
        ("8xH100", "H100"),
        ("h100 sxm", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H100-SXM5-80GB", "H100"),
        ("H200 SXM 141GB", "H200"),
        ("B200 180GB", "B200"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("RTX 4090", "4090"),
        ("NVIDIA GeForce RTX 3090", "3090"),
        ("4 x A10G", "A10G"),
        ("l4_24gb", "L4"),
        ("L40S-48GB", "L40S"),
        ("l40_48gb", "L40"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla T4", "T4"),
        ("RTX A6000", "A6000"),
        ("rtx_6000_ada", "RTX-6000-Ada"),
        ("RTX 6000 Ada Generation", "RTX-6000-Ada"),
    ],
)
def test_a_gpu(text: str, name: str) -> None:
    found = gpu_model(spelling.model_of_gpu(text))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("text", ["", "24gb", "TPU v4", "M3 Max", "p4d.24xlarge"])
def test_a_gpu_that_nobody_knows_costs_the_speed_alone(text: str) -> None:
    found = forecast.forecast(2, {**PLAIN, "gpu": text})
    assert (found.tokens, found.peak_gib is None) == (None, False)
    assert found.why_not.startswith("the GPU is missing")


@pytest.mark.parametrize(
    ("text", "ranks", "label"),
    [
        ("zero-3", 8, "zero3"),
        ("ZeRO3+offload", 8, "zero3"),
        ("ZeRO Stage 2", 8, "zero2"),
        ("deepspeed stage1", 8, "zero1"),
        ("ds_z3", 8, "zero3"),
        ("deepspeed_zero2", 8, "zero2"),
        ("DeepSpeed", 8, "zero2"),
        ("zero-infinity", 8, "zero3"),
        ("FSDP", 8, "colossal_fsdp"),
        ("FSDP1", 8, "colossal_fsdp"),
        ("full_shard", 8, "colossal_fsdp"),
        ("FSDP2", 8, "fsdp"),
        ("fsdp v2", 8, "fsdp"),
        ("fully_shard", 8, "fsdp"),
        ("fsdp zero3", 8, "colossal_fsdp"),
        ("HSDP", 64, "fsdp"),
        ("DDP", 8, "ddp"),
        ("DistributedDataParallel lora", 8, "ddp"),
        ("dp=8", 8, "ddp"),
        ("ddp", 1, "single"),
        ("lora", 4, "ddp"),
        ("", 4, "ddp"),
        ("", 1, "single"),
        ("single qlora-nf4", 1, "single"),
        ("gemini", 8, "gemini"),
        ("megatron", 8, "zero1"),
    ],
)
def test_a_strategy(text: str, ranks: int, label: str) -> None:
    assert spelling.sharding(text, ranks).label == label


def test_weights_that_stay_whole_need_what_they_spare_the_links() -> None:
    full, kept = understood(strategy="fsdp2"), understood(strategy="fsdp2 shard_grad_op")
    assert spelling.sharding("fsdp zero2", 8).gathered
    each = 2 * 8.03 * 7 / 8
    more = forecast._shown(kept) - forecast._shown(full)
    assert more / 1e9 == pytest.approx(2 * 8.03, rel=0.15)
    spared = full.strategy.link_bytes(forecast.training_of(full.work), 1) - kept.strategy.link_bytes(
        forecast.training_of(kept.work), 1
    )
    assert spared / 1e9 == pytest.approx(each, rel=0.01)


def test_shards_within_a_machine_are_as_large_on_many_machines() -> None:
    one, many = understood(strategy="hsdp", gpus="8"), understood(strategy="hsdp", gpus="64")
    assert forecast._shown(one) == forecast._shown(many)
    speed = [forecast.tokens_per_second(found, "h100_80gb") for found in (one, many)]
    assert speed[0] > speed[1]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("full", ""),
        ("LoRA", "lora"),
        ("rslora", "lora"),
        ("DoRA", "lora"),
        ("QLoRA", "qlora"),
        ("q-lora", "qlora"),
        ("qlora-nf4", "qlora"),
        ("lora 4bit", "qlora"),
        ("LoRA (bnb nf4)", "qlora"),
        ("lora gptq", "qlora"),
        ("lora int8", "lora"),
        ("ia3", "ia3"),
        ("LoHa", "loha"),
        ("adapter_v2", "adapter"),
        ("fsdp explorer", ""),
    ],
)
def test_an_adapter(text: str, kind: str) -> None:
    assert spelling.adapter(text) == kind


@pytest.mark.parametrize(
    ("text", "kind", "pure"),
    [
        ("bf16", "bf16", False),
        ("bf16-mixed", "bf16", False),
        ("16-mixed", "bf16", False),
        ("amp_fp16", "bf16", False),
        ("bfloat16 (pure)", "bf16", True),
        ("bf16-true", "bf16", True),
        ("bf16 weights and optimizer", "bf16", True),
        ("bf16, fp32 master weights", "bf16", False),
        ("fp32 weights, bf16 compute", "bf16", False),
        ("fp32", "no", False),
        ("32-true", "no", True),
        ("tf32", "no", False),
        ("no", "no", False),
        ("fp8 hybrid", "fp8", False),
        ("float8 rowwise", "fp8", False),
        ("mxfp8", "fp8", False),
        ("nf4 + bf16", "bf16", False),
        ("", "bf16", False),
    ],
)
def test_a_precision(text: str, kind: str, pure: bool) -> None:
    assert (spelling.precision(text), spelling.pure(text)) == (kind, pure)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((word, "full") for word in ("full", "true", "True", "yes", "on", "1", "gradient_checkpointing=true", "AC")),
        *((word, "full") for word in ("gradient checkpointing", "full (scripts)", "activation checkpointing: on")),
        *((word, "none") for word in ("none", "false", "no", "off", "0", "no gradient checkpointing", "disabled")),
        *((word, "none") for word in ("gradient_checkpointing=False", "none (recipe, not stated)", "without")),
        *((word, "selective") for word in ("selective", "selective op", "SAC", "selective (every 2)")),
        *((word, "offload") for word in ("offload", "full + cpu offload")),
        ("", None),
        ("?", None),
    ],
)
def test_checkpointing(text: str, kind: str | None) -> None:
    assert spelling.checkpointing(text) == kind


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("AdamW", 8),
        ("adamw_8bit", 2),
        ("8-bit Adam", 2),
        ("AdamW8bit", 2),
        ("adamw_bnb_8bit", 2),
        ("paged_adamw_8bit", 0),
        ("Adafactor", 0),
        ("SGD", 0),
        ("SGD with momentum", 4),
        ("Lion", 4),
        ("packed", None),
    ],
)
def test_an_optimizer(text: str, count: int | None) -> None:
    assert spelling.moment_bytes(text) == count


def test_an_optimizer_of_eight_bits_is_read_where_it_is_named() -> None:
    full, eight = (understood(strategy="single", gpus="1", extras=said) for said in ("AdamW", "adamw_8bit"))
    assert full.work.moment_bytes - eight.work.moment_bytes == 6


def test_a_switch_that_is_off_is_off() -> None:
    assert understood(extras="torch.compile").compiled
    for said in ("no torch.compile", "without torch.compile", "compile=False", "torch.compile: off", "fused AdamW"):
        assert not understood(extras=said).compiled, said


@pytest.mark.parametrize(
    ("extras", "steps"),
    [
        ("accum=4", 4),
        ("gradient_accumulation_steps=8", 8),
        ("grad accum 2", 2),
        ("GA=16", 16),
        ("global_batch=64", 4),
        ("global batch size 64", 4),
        ("GBS 128", 8),
        ("global batch 524288 tokens", 8),
        ("global batch 4M tokens", 61),
        ("", 1),
    ],
)
def test_accumulation(extras: str, steps: int) -> None:
    assert spelling.accumulation(extras, micro=2, length=4096, ranks=8) == steps


@pytest.mark.parametrize(
    ("extras", "found"),
    [
        ("r=16 q,k,v,o_proj", "qkvo"),
        ("r=8 q_proj, v_proj", "qv"),
        ("targets=['q_proj'· 'v_proj']", "qv"),
        ("q k v o gate up down", "all"),
        ("all-linear", "all"),
    ],
)
def test_the_matrices_with_adapters(extras: str, found: str) -> None:
    names = {"q", "k", "v", "o", "gate", "up", "down"}
    assert spelling.modules(extras) == (names if found == "all" else set(found))


def test_a_row_says_which_matrices_are_adapted_and_how_its_peak_was_read() -> None:
    """peft's own choice is queries and values; what a loop or a kernel changes is read, too."""
    lora = {"strategy": "single lora", "gpus": "1"}
    assert understood(**lora).work.targets == "q_proj,v_proj"
    assert understood(**lora, extras="r=8 all-linear").work.targets == "all-linear"
    assert understood(**lora, extras="r=8 q,k,v,o_proj").work.targets == "k_proj,o_proj,q_proj,v_proj"
    assert understood(**{**lora, "strategy": "single qlora"}).work.targets == "all-linear"
    assert understood(**lora, source="huggingface/peft x", extras="peak = nvidia-smi").meter == "device"
    assert understood(extras="liger norms").work.loss.logit_bytes is None
    assert understood(extras="liger norms, cross-entropy behind a whole head").work.loss.logit_bytes
    again = "fsdp1-full_shard lora"
    assert understood(strategy=again).strategy.keeps_inputs_of_frozen_layers
    assert not understood(strategy=again, extras="use_reentrant False").strategy.keeps_inputs_of_frozen_layers
    assert understood().exact
    assert not understood(extras="micro-batch contradicts the memory after the step").exact


def test_ranks_of_adapters() -> None:
    said = ("r=16", "lora_r=16", "lora rank 16", "rank=16", "LoRA rank: 16")
    assert {spelling.rank(text) for text in said} == {16}
    assert {spelling.trainable(text) for text in ("trainable=20,971,520", "trainable params: 20971520")} == {20971520}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tp=8", "tp"),
        ("fsdp TP 2", "tp"),
        ("tensor parallel 4", "tp"),
        ("pp4", "pp"),
        ("tp=4 pp=8", "tp and pp"),
        ("fsdp2 ep=8", "ep"),
    ],
)
def test_what_is_not_planned_is_named(text: str, named: str) -> None:
    found = forecast.forecast(2, {**PLAIN, "strategy": text})
    assert found.peak_gib is None
    assert found.why_not.startswith(f"{named}: trainwiz does not plan")


def test_degrees_of_one_are_none() -> None:
    assert understood(strategy="fsdp2 tp=1 pp=1 dp=8").context == 1
    assert understood(strategy="fsdp2 cp=4").context == understood(strategy="zero3 sp=4").context == 4


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama 3 8B", 8.03),
        ("Meta-Llama-3-8B-Instruct", 8.03),
        ("llama3-8b", 8.03),
        ("LLaMA2-7B", 6.74),
        ("Llama-2-13b-chat-hf", 13.02),
        ("lmsys/vicuna-7b-v1.5", 6.74),
        ("longchat-13b-16k", 13.02),
        ("HuggingFaceH4/zephyr-7b-beta", 7.24),
        ("unsloth/mistral-7b-v0.3-bnb-4bit", 7.25),
        ("Qwen2.5-7B-Instruct", 7.62),
        ("Qwen/Qwen3-8B-Base", 8.19),
        ("google/gemma-2-9b-it", 9.24),
        ("GPT-2 XL", 1.56),
        ("gpt2-124M", 0.124),
        ("bloom-7b1", 7.07),
        ("some-new-model-13B", 13.0),
        ("some new model 350M", 0.35),
    ],
)
def test_a_model(name: str, billions: float) -> None:
    found = shape(name, None)
    assert found is not None
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.06)


def test_a_row_of_nonsense_is_refused_and_does_not_stop_the_others(tmp_path: Path) -> None:
    names = list(PLAIN)
    odd = [
        {"model": "99999999999b"},
        {"gpus": "9" * 40, "micro_batch": "9" * 40, "seq_len": "1e30"},
        {"extras": "accum=" + "9" * 40 + "; r=" + "9" * 40 + "; loss in 0 chunks; machine of 0; 0 W"},
        {"strategy": "qlora cp=0 sp=0", "precision": "??", "checkpointing": "\x1b[0m", "gpu": "８"},
        dict.fromkeys(names, ""),
    ]
    file = tmp_path / "rows.csv"
    lines = [",".join({**PLAIN, **row}[name] for name in names) for row in odd]
    file.write_text("\n".join([",".join(name.upper() for name in names), *lines]) + "\n", encoding="utf-8")
    rows = forecast.read(file)
    assert len(rows) == len(odd)
    assert all(row.why_not or (row.peak_gib and row.tokens) for row in rows)
