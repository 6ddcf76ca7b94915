"""Model state in bytes, and the shapes of the presets."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plans import make

from trainwiz.estimate import estimate, packing
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.adapter import four_bit_bytes, trained_parameters
from trainwiz.estimate.datasheets import MODELS
from trainwiz.estimate.device import Work, micro_batch, needs, training_of
from trainwiz.estimate.forecast import forecast
from trainwiz.estimate.gpus import gpu_model
from trainwiz.estimate.loading import loaded_onto_device
from trainwiz.estimate.speed import pace
from trainwiz.estimate.state import work_of
from trainwiz.models import known, of_config
from trainwiz.render import deepspeed
from trainwiz.strategies import Training, labeled
from trainwiz.strategies.colossal import CHUNK_ELEMENTS
from trainwiz.strategies.strategy import REDUCE_BUCKET_ELEMENTS, SUB_GROUP_ELEMENTS
from trainwiz.tasks import named
from trainwiz.tasks.shapes import DECODERS

B = 10**9


def state_bytes_per_rank(label: str, **values: Any) -> int:
    return labeled(label).state_bytes(Training(**values))


def parameters_of(name: str, task: str = "causal_lm") -> int | None:
    shape = named(task).shape(name)
    return shape.parameters if shape else None


@pytest.mark.parametrize(
    ("label", "world", "half", "per_parameter"),
    [
        ("single", 1, True, 16),
        ("ddp", 8, True, 16),
        ("ddp", 8, False, 16),
        ("zero0", 4, True, 20),
        ("zero1", 2, True, 14),
        ("zero1", 4, True, 11),
        ("zero1", 8, False, 8 + 2),
        ("zero2", 8, True, 2 + 18 / 8),
        ("zero2", 4, False, 4 + 20 / 4),
        ("fsdp", 8, True, 2),
    ],
)
def test_bytes_per_parameter(label: str, world: int, half: bool, per_parameter: float) -> None:
    assert state_bytes_per_rank(label, parameters=8 * B, world=world, half=half) == per_parameter * 8 * B


def test_zero_3_holds_its_reduce_bucket_for_ever() -> None:
    """18 P / N, gradients in fp32 among them, and the elements that ds_config.json allows, two bytes each."""
    written = deepspeed.config(make(strategy__kind="deepspeed", strategy__zero_stage=3))
    assert written["zero_optimization"]["reduce_bucket_size"] == REDUCE_BUCKET_ELEMENTS
    assert state_bytes_per_rank("zero3", parameters=8 * B, world=8, half=True) == 18 * B + B // 10
    assert state_bytes_per_rank("zero3", parameters=B // 100, world=10, half=True) == 18 * B // 1000 + 2 * B // 100


@pytest.mark.parametrize(
    ("settings", "elements"),
    [
        ({}, REDUCE_BUCKET_ELEMENTS),
        ({"reduce_bucket_size": 2e8}, 200_000_000),
        ({"reduce_bucket_size": None}, 5 * 10**8),
    ],
)
def test_a_plan_s_own_bucket_counts(settings: dict[str, float | None], elements: int) -> None:
    zero2 = {"strategy__kind": "deepspeed", "strategy__zero_stage": 2, "precision__mixed_precision": "bf16"}
    keys = {f"zero_optimization.{key}": value for key, value in settings.items()}
    plan = make(**zero2, deepspeed=keys)
    work = work_of(plan, 8 * B, None)
    assert work.bucket == elements
    usual = needs(labeled("zero2"), replace(work, bucket=REDUCE_BUCKET_ELEMENTS)).total
    more = needs(labeled("zero2"), work).total - usual
    assert more == 2 * (elements - REDUCE_BUCKET_ELEMENTS), "on the CPU nothing overlaps"
    at_the_step = needs(labeled("zero2"), replace(work, overlaps=True)).moments["step"]["buffers"]
    assert at_the_step == 3 * 2 * elements


def test_zero_3_joins_the_gradients_of_a_part_before_it_steps() -> None:
    """DeepSpeed's example with 6.86 billion parameters on four H100 has 5.64 GiB at its peak beside what stays."""
    written = deepspeed.config(make(strategy__kind="deepspeed", strategy__zero_stage=3))
    zero3 = labeled("zero3")
    shape = {"parameters": 6_860_000_000, "world": 4, "half": True}
    assert written["zero_optimization"]["sub_group_size"] == SUB_GROUP_ELEMENTS
    assert zero3.step_bytes(Training(**shape, sums_in_half=True)) == pytest.approx(5.64 * 2**30, rel=0.01)
    assert zero3.step_bytes(Training(**shape)) == 4 * SUB_GROUP_ELEMENTS
    assert zero3.step_bytes(Training(**shape, sub_group=10**12)) == 6_860_000_000
    assert zero3.step_bytes(Training(**shape, optimizer_offloaded=True)) == 0
    zero_3 = {"strategy__kind": "deepspeed", "strategy__zero_stage": 3, "precision__mixed_precision": "bf16"}
    told: dict[str, float] = {"zero_optimization.sub_group_size": 2e8}
    for own, elements in (({}, SUB_GROUP_ELEMENTS), (told, 200_000_000)):
        work = work_of(make(**zero_3, deepspeed=own), 8 * B, None)
        assert work.sub_group == elements
        assert needs(zero3, work).moments["step"]["buffers"] == 4 * min(elements, 8 * B // work.world)


def test_products_in_fp32_reach_what_the_chip_was_measured_at() -> None:
    """An A6000 has twice an A100's fp32 units by its datasheet, and trains no faster in fp32 (docs/forecast.md)."""
    gpt2 = known("gpt2")
    assert gpt2
    work = Work(parameters=gpt2.parameters, transformer=gpt2, samples=8, length=1024)
    paces = [pace(labeled("single"), work, gpu_model(name)) for name in ("A6000", "A100-80GB")]
    assert all(paces)
    slower, faster = (each.compute for each in paces if each)
    assert slower == pytest.approx(faster * (19.5 * 0.98) / (38.7 * 0.62), rel=0.05)
    shares = {gpu.name: gpu.single_share for gpu in MODELS}
    assert (shares["T4"], shares["V100"], shares["4090"], shares["MI300X"]) == (0.53, 0.9, 0.68, 0.8)


def test_gradients_that_add_up_in_16_bits_have_copies_in_the_step_alone() -> None:
    """Rows of a table of ZeRO on 8 A800 (docs/forecast.md): ZeRO 2 with and without Adam's moments; ZeRO 3 has none."""
    llama = known("llama-7b")
    assert llama
    work = Work(
        parameters=llama.parameters,
        transformer=llama,
        precision="bf16",
        world=8,
        sums_in_half=True,
        accumulates=True,
        checkpointing="full",
        length=4096,
        bucket=500_000_000,
        loss=Loss(logit_bytes=18, tokens_at_once=None),
    )
    found = needs(labeled("zero2"), replace(work, moment_bytes=0))
    assert found.total / 2**30 == pytest.approx(23.5, rel=0.02)
    assert needs(labeled("zero2"), replace(work, samples=4)).total / 2**30 == pytest.approx(38.6, rel=0.03)
    own = replace(work, sums_in_half=False)
    for label, each in (("zero2", 6), ("zero3", 0)):
        once, often = (
            needs(labeled(label), replace(own, accumulates=more)).moments["loss"]["state"] for more in (False, True)
        )
        assert often - once == pytest.approx(each * llama.parameters / 8, abs=8)


def test_zero_2_is_what_deepspeed_estimates() -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as theirs

    for world in (1, 2, 8):
        _, device = theirs(7 * B, num_gpus_per_node=world, cpu_offload=False)
        assert state_bytes_per_rank("zero2", parameters=7 * B, world=world, half=True) == device


def test_offload_leaves_weights() -> None:
    """Stages 1 and 2 add gradients up in fp32 on the GPU: with 0.19, 4 / N bytes of each parameter were seen there."""
    away: dict[str, Any] = {"parameters": 8 * B, "world": 8, "half": True, "optimizer_offloaded": True}
    assert state_bytes_per_rank("zero2", **away) == 16 * B + 4 * B
    assert state_bytes_per_rank("zero1", **away) == 16 * B + 32 * B + 4 * B
    assert state_bytes_per_rank("zero2", **away, sums_in_half=True) == 16 * B
    assert state_bytes_per_rank("zero3", **away, parameters_offloaded=True) == B // 10


@pytest.mark.parametrize(
    ("label", "half", "away", "per_parameter"),
    [
        ("zero1", True, True, 6 + 4 / 8),
        ("zero1", False, True, 8),
        ("zero2", False, True, 4),
        ("zero3", False, False, 20 / 8),
        ("zero3", False, True, 4 / 8),
        ("gemini", True, False, 16 / 8),
        ("gemini", False, False, 20 / 8),
        ("colossal_zero1", True, False, 4 + 2),
        ("colossal_fsdp", True, False, 2),
        ("colossal_ddp", True, False, 16),
    ],
)
def test_what_fp32_offload_and_colossalai_hold(label: str, half: bool, away: bool, per_parameter: float) -> None:
    found = state_bytes_per_rank(label, parameters=8 * B, world=8, half=half, optimizer_offloaded=away)
    number = 2 if half else 4
    fixed = {"zero3": REDUCE_BUCKET_ELEMENTS, "gemini": CHUNK_ELEMENTS}.get(label, 0) * number
    assert found == per_parameter * 8 * B + fixed


def test_estimate_of_a_plan() -> None:
    ddp = estimate(make(strategy__kind="ddp", machine__num_processes=2), 1000)
    assert (ddp.device_bytes_per_rank, ddp.host_bytes_per_machine, ddp.checkpoint_bytes) == (16_000, 0, 12_000)
    offloaded = make(
        strategy__kind="deepspeed",
        strategy__zero_stage=3,
        strategy__offload_optimizer_device="cpu",
        strategy__offload_param_device="cpu",
        machine__num_processes=4,
        machine__num_machines=2,
        precision__mixed_precision="bf16",
    )
    found = estimate(offloaded, 1000)
    assert found.host_bytes_per_machine == 10_000
    assert found.checkpoint_bytes == 12_000  # shards alone; test_training.py compares with real ones
    assert estimate(make(optimizer__name="sgd"), 1000).checkpoint_bytes == 8_000
    # Only DeepSpeed in 16 bits writes 16-bit weights beside the fp32 ones.
    assert estimate(make(precision__mixed_precision="bf16"), 1000).checkpoint_bytes == 12_000
    fp32 = make(strategy__kind="deepspeed", strategy__zero_stage=2)
    assert estimate(fp32, 1000).checkpoint_bytes == 16_000
    weights = make(strategy__kind="deepspeed", strategy__zero_stage=3, strategy__offload_param_device="cpu")
    assert [estimate(plan, 1000).host_bytes_per_machine for plan in (fp32, weights)] == [0, 2_000]


def test_offloaded_inputs_leave_the_gpu_and_take_host_memory() -> None:
    eight = known("meta-llama/Llama-3.1-8B")
    assert eight is not None
    values = {"task": "causal_lm", "model__name": "meta-llama/Llama-3.1-8B", "model__from_scratch": False}
    values |= {"machine__device": "cuda", "machine__num_processes": 4, "machine__num_machines": 2}
    values |= {"strategy__kind": "fsdp", "precision__mixed_precision": "bf16"}
    values |= {"batch__sequence_length": 60_000, "batch__per_device_batch_size": 1}
    plans = {how: make(**values, model__activation_checkpointing=how) for how in ("full", "offload")}
    full, away = (estimate(plan, eight.parameters, eight) for plan in plans.values())
    stream = 60_000 * 4096 * 2  # a layer's input in 16 bits; one of 32 stays
    assert full.activation_bytes_per_rank - away.activation_bytes_per_rank == 31 * stream
    assert full.device_bytes_per_rank == away.device_bytes_per_rank
    # Two ranks on each machine; a pinned block has the next power of two.
    assert (full.host_bytes_per_machine, away.host_bytes_per_machine) == (0, 2 * 32 * 2**29)
    assert 2**28 < stream < 2**29
    gpu = gpu_model("NVIDIA A100-SXM4-80GB")
    assert gpu is not None
    fast, slow = (forecast(plan, eight.parameters, eight, gpu) for plan in plans.values())
    assert fast.seconds
    assert slow.seconds
    copied = 2 * 32 * stream / 25e9 * plans["full"].batch.gradient_accumulation_steps
    assert slow.seconds["memory"] - fast.seconds["memory"] == pytest.approx(copied)
    assert slow.seconds["compute"] == fast.seconds["compute"]


SMALL_LLAMA = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
}
RESIDENT_MIB = [
    # VmHWM of the largest rank in six updates of 2 × 64 tokens in fp32; two ranks but for `single`.
    ("gpt2-124m", "single", 2861),
    ("gpt2-124m", "ddp", 3131),
    ("gpt2-124m", "zero1", 2749),
    ("tied", "single", 980),
    ("tied", "ddp", 1030),
    ("tied", "zero0", 993),
    ("tied", "zero1", 1012),
    ("tied", "zero2", 1002),
    ("tied", "zero2-offload", 1194),
    ("tied", "zero3", 1256),
    ("tied", "fsdp", 1064),
    ("tied", "colossal_ddp", 1125),
    ("untied", "single", 1073),
    ("untied", "ddp", 1127),
    ("untied", "zero1", 1216),
    ("untied", "zero2", 1215),
    ("untied", "zero3", 1505),
    ("untied", "fsdp", 1108),
    ("untied", "colossal_ddp", 1252),
]
"""Measured by `trainwiz launch` with torch 2.13, transformers 5.17 and DeepSpeed 0.19."""


@pytest.mark.parametrize(("model", "label", "mib"), RESIDENT_MIB)
def test_the_host_memory_of_ranks_on_the_cpu(model: str, label: str, mib: int) -> None:
    preset = DECODERS.get(model)
    shape = preset.transformer if preset else of_config({**SMALL_LLAMA, "tie_word_embeddings": model == "tied"})
    assert shape
    values: dict[str, Any] = {"machine__device": "cpu", "machine__num_processes": 1 if label == "single" else 2}
    stage, _, offload = label.removeprefix("zero").partition("-")
    values |= {"strategy__kind": "deepspeed", "strategy__zero_stage": int(stage)} if "zero" in label else {}
    values |= {"strategy__offload_optimizer_device": "cpu"} if offload else {}
    values |= {"strategy__kind": label} if "zero" not in label else {}
    values |= {"precision__mixed_precision": "no", "batch__sequence_length": 64, "batch__per_device_batch_size": 2}
    values |= {"batch__gradient_accumulation_steps": 1, "model__name": model if preset else "a/folder"}
    found = forecast(make(**values), shape.parameters, shape, None)
    assert found.host_bytes
    assert found.host_bytes / 2**20 == pytest.approx(mib, rel=0.05)
    if label == "fsdp":  # 309.8 and 403.6 MiB on the disk: a tied head has two names
        assert found.checkpoint_bytes
        assert found.checkpoint_bytes / 2**20 == pytest.approx({"tied": 309.8, "untied": 403.6}[model], rel=0.01)


@pytest.mark.parametrize("adapter", ["none", "lora"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_is_copied_is_what_is_kept(kind: str, adapter: str) -> None:
    """Beside an adapter, the residual stream is in 16 bits under autocast, too."""
    eight = known("meta-llama/Llama-3.1-8B")
    gpu = gpu_model("NVIDIA A100-SXM4-80GB")
    assert eight
    assert gpu
    values = {"task": "sft", "model__name": "meta-llama/Llama-3.1-8B", "model__from_scratch": False}
    values |= {"model__adapter": adapter, "machine__device": "cuda", "machine__num_processes": 4}
    values |= {"strategy__kind": kind, "precision__mixed_precision": "bf16", "batch__sequence_length": 8192}
    full, away = (make(**values, model__activation_checkpointing=how) for how in ("full", "offload"))
    fast, slow = (forecast(plan, eight.parameters, eight, gpu).seconds for plan in (full, away))
    assert fast
    assert slow
    kept = estimate(away, eight.parameters, eight).host_bytes_per_machine / 4  # blocks are exact powers of two
    copied = 2 * kept / 25e9 * full.batch.gradient_accumulation_steps
    assert slow["memory"] - fast["memory"] == pytest.approx(copied)


def test_a_checkpoint_in_the_background_is_copied_to_host_memory() -> None:
    ranks = {"machine__num_processes": 4, "machine__num_machines": 2, "checkpoint__background": True}
    kinds = ("ddp", "fsdp", "deepspeed")
    copies = [
        estimate(make(**ranks, strategy__kind=kind, strategy__zero_stage=2 if kind == "deepspeed" else None), 1000)
        for kind in kinds
    ]
    # All by the first rank, by each machine its part, and DeepSpeed copies nothing.
    assert [one.staged_bytes_per_machine for one in copies] == [12_000, 6_000, 0]
    assert estimate(make(strategy__kind="ddp", machine__num_processes=4), 1000).staged_bytes_per_machine == 0


def test_ranks_have_memory_of_their_own_before_their_models() -> None:
    """Private pages at the start of `build_model`: 152 MiB, 180 with transformers, 209 with DeepSpeed as well."""
    zero = {"strategy__kind": "deepspeed", "strategy__zero_stage": 2}
    plans = [make(task="custom"), make(), make(**zero)]
    for plan, seen in zip(plans, (152, 180, 209), strict=True):
        found = estimate(plan, 1000).process_bytes_per_machine / plan.machine.ranks_per_machine / 2**20
        assert seen <= found < 1.15 * seen
    eight = make(**zero, machine__num_processes=16, machine__num_machines=2)
    assert (
        estimate(eight, 1000).process_bytes_per_machine
        == 8 * estimate(make(**zero, machine__num_processes=1), 1000).process_bytes_per_machine
    )


def test_every_preset_of_the_vocabulary_has_a_shape() -> None:
    assert DECODERS["tiny"].hidden_size == 128
    assert parameters_of("tiny") == 869_760
    assert parameters_of("gpt2-124m") == 124_475_904
    assert parameters_of("llama-1b") == 1_100_048_384
    assert parameters_of("my/model") is None


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", list(DECODERS))
def test_the_formula_counts_what_transformers_builds(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = DECODERS[name]
    config = AutoConfig.for_model(shape.model_type, vocab_size=shape.vocab_size)
    if shape.model_type == "gpt2":
        config.n_embd, config.n_layer, config.n_head = shape.hidden_size, shape.num_hidden_layers, 12
        config.n_positions = shape.max_position_embeddings
    else:
        for field in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "max_position_embeddings",
        ):
            setattr(config, field, getattr(shape, field))
        config.head_dim = shape.hidden_size // shape.num_attention_heads
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters


def test_an_adapter_leaves_little_to_train() -> None:
    """Llama 2 7B has 39,976,960 such numbers at rank 16: 16 × (inputs + outputs) of seven matrices in 32 layers."""
    seven_billion = 6_738_415_616
    layer = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    assert trained_parameters(seven_billion, "lora", 16) == pytest.approx(32 * 16 * layer, rel=0.1)
    assert trained_parameters(seven_billion, "none", 16) == seven_billion
    assert trained_parameters(1000, "lora", 60000) == 1000


@pytest.mark.parametrize(
    ("adapter", "strategy", "precision", "frozen_bytes"),
    [
        ("lora", {"strategy__kind": "ddp"}, "bf16", 2),
        ("lora", {"strategy__kind": "ddp"}, "no", 4),
        ("lora", {"strategy__kind": "fsdp"}, "bf16", 2 / 8),
        ("lora", {"strategy__kind": "deepspeed", "strategy__zero_stage": 3}, "bf16", 2 / 8),
        ("lora", {"strategy__kind": "deepspeed", "strategy__zero_stage": 2}, "bf16", 2),
        ("qlora", {"strategy__kind": "ddp"}, "bf16", 0.7054),  # the embeddings and the head are in 16 bits
        ("qlora", {"strategy__kind": "fsdp"}, "bf16", 0.7054 / 8),
    ],
)
def test_what_is_frozen_takes_its_weights_alone(
    adapter: str, strategy: dict[str, object], precision: str, frozen_bytes: float
) -> None:
    """The optimizer, the gradients and the checkpoint are those of the adapter."""
    values = {"machine__device": "cuda", "machine__num_processes": 8, "precision__mixed_precision": precision}
    plan = make(task="sft", model__name="org/model", model__adapter=adapter, **values, **strategy)
    needs = estimate(plan, 8 * B)
    trained = trained_parameters(8 * B, adapter, 16)
    label = make(**strategy).strategy.label
    state = state_bytes_per_rank(label, parameters=trained, world=8, half=precision == "bf16")
    assert needs.device_bytes_per_rank - state == pytest.approx(frozen_bytes * (8 * B - trained), rel=1e-3)
    assert needs.checkpoint_bytes <= 14 * trained
    assert estimate(make(**values, **strategy), 8 * B).device_bytes_per_rank > 2 * needs.device_bytes_per_rank


def test_presets_belong_to_their_tasks() -> None:
    assert parameters_of("tiny", "text_classification") == 937_989
    assert parameters_of("resnet18", "image_classification") == 11_172_170
    assert parameters_of("resnet18") is None
    assert parameters_of("tiny", "custom") is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=40), st.integers(2, 12), st.booleans())
@example([7] * 10, 10, True)  # documents just above half a row, so that no two share one
def test_the_bound_on_rows_holds(documents: list[int], length: int, packed: bool) -> None:
    exact = packing.rows(documents, length, packing=packed)
    assert exact <= packing.rows_at_most(sum(documents), length, packing=packed)
    assert exact >= -(-sum(n - 1 for n in documents) // length)
    assert packing.rows(documents, length, packing=True) <= packing.rows(documents, length, packing=False)


@pytest.mark.parametrize("packed", [True, False])
def test_a_document_of_a_petabyte_is_counted_and_not_listed(packed: bool) -> None:
    assert packing.rows([(1 << 50) + 1, 3, 4], 1024, packing=packed) == (1 << 40) + (1 if packed else 2)


def test_activations_grow_with_the_tokens_of_a_micro_batch() -> None:
    def activations(micro: int, length: int) -> int:
        plan = make(
            model__name="gpt2-124m",
            batch__per_device_batch_size=micro,
            batch__real_batch_size=4 * micro,
            batch__sequence_length=length,
        )
        return estimate(plan, parameters=124_000_000).activation_bytes_per_rank

    layers = 12 * 50304 * 100  # and the logits of each token
    assert activations(1, 100) > layers
    assert activations(3, 100) == 3 * activations(1, 100)
    assert activations(100, 3) == activations(3, 100)
    # From 1024 tokens on, the logits stay the same.
    assert activations(2, 1024) - activations(1, 1024) == activations(1, 1024) - 12 * 50304 * 1024


def test_a_model_counts_by_its_own_layers() -> None:
    values = {"machine__device": "cuda", "machine__num_processes": 8, "precision__mixed_precision": "bf16"}
    plan = make(model__name="org/llama", strategy__kind="ddp", batch__sequence_length=2048, **values)
    eight, assumed = known("llama-3.1-8b"), estimate(plan, 8_030_261_248)
    assert eight
    found = estimate(plan, eight.parameters, eight)
    # 0.383 GiB a layer for one sample of 2048 tokens in 16 bits (published). 12 bytes for each of 1024 logits take less
    # than what FSDP gathers in the backward pass, but the gradient of the head beside them makes the loss DDP's peak.
    half = estimate(
        make(**{**values, "model__name": "org/llama", "batch__sequence_length": 2048}, strategy__kind="fsdp"),
        eight.parameters,
        eight,
    )
    assert half.activation_bytes_per_rank == pytest.approx(8 * 32 * 0.383 * 2**30, rel=0.01)
    assert found.activation_bytes_per_rank > half.activation_bytes_per_rank
    assert assumed.activation_bytes_per_rank == pytest.approx(found.activation_bytes_per_rank, rel=0.35)
    # Without accumulation gradients come later, but for the head's; autocast keeps a copy of the weights in 16 bits.
    head = 4 * eight.vocab_size * eight.hidden_size
    assert found.beside_bytes_per_rank - found.device_bytes_per_rank == 2 * eight.parameters + head
    assert found.load_bytes_per_machine == 8 * 4 * eight.parameters


@pytest.mark.parametrize(
    ("label", "changes", "each"),
    [
        ("ddp", {}, 4),
        ("fsdp", {}, 2),
        ("zero2", {}, 2),
        ("zero3", {}, 0),  # its weights are gathered by the call of a module, which the fused loss does not make
        ("ddp", {"samples": 1}, 0),  # one chunk
        ("ddp", {"adapter": "lora"}, 0),
        ("ddp", {"generates": False}, 0),
    ],
)
def test_a_loss_that_computes_gradients_holds_those_of_the_head(label: str, changes: dict[str, Any], each: int) -> None:
    eight = known("llama-3.1-8b")
    assert eight
    work = Work(parameters=eight.parameters, transformer=eight, precision="bf16", world=8, samples=2, length=1024)
    work = replace(work, **changes)
    plain, fused = (needs(labeled(label), replace(work, fused_head=fuses)) for fuses in (False, True))
    assert fused.at("loss") - plain.at("loss") == each * 128256 * 4096
    assert fused.at("backward") == plain.at("backward")


@pytest.mark.parametrize(
    ("changes", "fuses"),
    [
        ({}, True),
        ({"precision__mixed_precision": "fp16"}, False),
        ({"task": "text_classification"}, False),
    ],
)
def test_the_loss_is_fused_where_rows_are_packed_and_not_in_fp16(changes: dict[str, Any], fuses: bool) -> None:
    assert work_of(make(**{"precision__mixed_precision": "bf16", **changes}), 1000, None).fused_head is fuses


def test_what_comes_and_goes_beside_the_state() -> None:
    """Of 8B under FSDP2: embeddings and head, two layers, and gradients of the head and of a layer with a copy."""
    eight = known("llama-3.1-8b")
    assert eight
    table, layer = 128256 * 4096, 218_112_000
    root = 2 * table + 4096
    shape: dict[str, Any] = {"parameters": 8 * B, "world": 8, "half": True, "model_parameters": 8 * B}
    shape |= {"layer": layer, "table": table, "root": root}
    assert (eight.largest_layer, eight.largest_table) == (layer, table)
    fsdp, zero3 = labeled("fsdp"), labeled("zero3")
    whole = 2 * root + 2 * 2 * layer + 2 * table + 6 * layer
    assert fsdp.buffer_bytes(Training(**shape)) == whole
    assert fsdp.loss_buffer_bytes(Training(**shape)) == 2 * root
    assert fsdp.reduction_bytes(Training(**shape)) == 8 * root
    assert fsdp.buffer_bytes(Training(**shape, whole_gradients=True)) == whole + 32 * B
    adapted = Training(**{**shape, "parameters": B // 100})
    assert fsdp.buffer_bytes(adapted) == 2 * root + 2 * 2 * layer
    packed = training_of(Work(parameters=8 * B, transformer=eight, adapter="qlora", precision="bf16", world=8))
    four_bits, widest = int(4.127 / 8 * (layer - 2 * 4096)) + 2 * 2 * 4096, 4096 * 14336
    assert fsdp.buffer_bytes(packed) == 2 * root + 2 * four_bits + 2 * widest
    # DeepSpeed's gathers run ahead to its limit, and beyond it by the parameter that crosses it.
    live = zero3.buffer_bytes(Training(**shape))
    assert live == 2 * (1_000_000_000 + REDUCE_BUCKET_ELEMENTS + 2 * table)
    wide = Training(**{**shape, "table": 1000, "widest": 4096 * 14336})
    assert zero3.buffer_bytes(wide) == 2 * (1_000_000_000 + REDUCE_BUCKET_ELEMENTS + 2 * 4096 * 14336)
    assert zero3.buffer_bytes(Training(parameters=1000, world=8, half=True, model_parameters=1000)) == 2 * 2000


def test_the_peaks_that_others_measured() -> None:
    """Rows of fms-acceleration on A100: Mistral 7B in pure bf16, and Llama 3 8B with QLoRA (docs/forecast.md)."""
    mistral, llama = known("mistral-7b"), known("llama-3-8b")
    assert mistral
    assert llama
    pure: dict[str, Any] = {
        "precision": "bf16",
        "weight_bytes": 2,
        "moment_bytes": 4,
        "fused_step": False,
        "arithmetic": "autocast",
        "stream_bytes": 2,
        "checkpointing": "full",
        "length": 4096,
    }
    small = Work(parameters=mistral.parameters, transformer=mistral, samples=4, **pure)
    found = needs(labeled("single"), small)
    assert (found.peak, found.total / 2**30) == ("step", pytest.approx(67.46, rel=0.01))
    found = needs(labeled("single"), replace(small, samples=16))
    assert (found.peak, found.total / 2**30) == ("backward", pytest.approx(71.85, rel=0.01))
    adapted = Work(
        parameters=llama.parameters,
        transformer=llama,
        adapter="qlora",
        trained=13_631_488,
        frozen_bytes=2,
        world=2,
        samples=8,
        loss=Loss(logit_bytes=8, tokens_at_once=None),
        **pure,
    )
    found = needs(labeled("colossal_fsdp"), adapted)
    assert (found.peak, found.total / 2**30) == ("loss", pytest.approx(44.59, rel=0.01))
    found = needs(labeled("colossal_fsdp"), replace(adapted, loss=Loss()))
    assert (found.peak, found.total / 2**30) == ("backward", pytest.approx(28.31, rel=0.03))


def test_frozen_weights_in_16_bits_leave_the_stream_in_16_bits() -> None:
    """With full checkpointing a layer keeps its input: 2 bytes per feature, and 4 where the weights are in fp32."""
    llama = known("llama-3-8b")
    assert llama
    work = Work(parameters=llama.parameters, transformer=llama, precision="bf16", checkpointing="full", length=1000)
    stream = 1000 * 32 * 4096
    adapted = replace(work, adapter="lora")
    assert micro_batch(labeled("ddp"), work).saved == 4 * stream
    assert micro_batch(labeled("ddp"), adapted).saved == 2 * stream
    assert micro_batch(labeled("ddp"), replace(adapted, precision="no")).saved == 4 * stream
    # Dropout keeps a mask in each layer, or in the one that is computed again; in 16 bits a copy, too.
    dropped = replace(adapted, dropped_features=4096)
    for row, each in ((labeled("ddp"), 1), (labeled("zero2"), 3)):
        again, plain = micro_batch(row, dropped), micro_batch(row, adapted)
        assert (again.saved - plain.saved, again.live - plain.live) == (0, each * 1000 * 4096)
        again, plain = (micro_batch(row, replace(one, checkpointing="none")) for one in (dropped, adapted))
        assert (again.saved - plain.saved, again.live) == (each * stream, 0)


def test_dropout_of_an_adapter_counts_the_inputs_of_its_matrices() -> None:
    """Of Llama 3 8B: six matrices that 4096 features enter, and one that 14336 enter."""
    llama = known("llama-3-8b")
    assert llama
    works = {
        (dropout, targets): work_of(
            make(
                task="sft",
                model__name="some/llama",
                model__from_scratch=False,
                model__adapter="lora",
                model__lora_dropout=dropout,
                model__lora_targets=targets,
            ),
            llama.parameters,
            llama,
        )
        for dropout in (0.0, 0.1)
        for targets in ("all-linear", "q_proj,v_proj")
    }
    counted = {key: work.dropped_features for key, work in works.items()}
    assert counted == {
        (0.0, "all-linear"): 0,
        (0.0, "q_proj,v_proj"): 0,
        (0.1, "all-linear"): 6 * 4096 + 14336,
        (0.1, "q_proj,v_proj"): 4 * 4096,
    }


def test_dora_keeps_both_results_of_each_matrix_and_measures_one_at_a_time() -> None:
    """Of Llama 3 8B: 32 layers with 4096 + 2 × 1024 + 4096 + 2 × 14336 + 4096 features that leave a matrix."""
    llama = known("llama-3-8b")
    assert llama
    work = Work(parameters=llama.parameters, transformer=llama, precision="bf16", adapter="lora", length=1000)
    plain, found = (micro_batch(labeled("ddp"), replace(work, measured=it)) for it in (False, True))
    out = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert found.saved - plain.saved == 1000 * 32 * out * 2 * 2
    largest = 6 * 14336**2 + 10 * 14336 * 4096
    assert found.live - plain.live == largest
    work = replace(work, checkpointing="full")
    plain, found = (micro_batch(labeled("ddp"), replace(work, measured=it)) for it in (False, True))
    assert (found.saved, found.live - plain.live) == (plain.saved, largest + 1000 * out * 2 * 2)
    paces = [pace(labeled("ddp"), replace(work, measured=it), gpu_model("L40S")) for it in (False, True)]
    assert paces[0]
    assert paces[1]
    assert 1.1 < paces[1].seconds / paces[0].seconds < 3


def test_eager_attention_keeps_scores_and_a_mask() -> None:
    """32 layers of 32 heads: 6 bytes for each pair of tokens under autocast, of which one layer is made again."""
    llama = known("llama-3-8b")
    assert llama
    work = Work(parameters=llama.parameters, transformer=llama, precision="bf16", samples=2, length=4096)
    pairs, repeated = 2 * 4096**2, 2 * 4096 * 2 * 2 * (4096 - 1024)  # keys and values, in 16 bits
    fused, eager = (micro_batch(labeled("ddp"), replace(work, keeps_scores=it)) for it in (False, True))
    assert eager.saved - fused.saved == pairs * (32 * 32 * 6 + 4) + 32 * repeated
    assert (eager.live, fused.live, eager.logits) == (8 * 32 * pairs, 0, fused.logits)
    again = replace(work, checkpointing="full")
    fused, eager = (micro_batch(labeled("ddp"), replace(again, keeps_scores=it)) for it in (False, True))
    assert eager.saved - fused.saved == 4 * pairs
    assert eager.live - fused.live == pairs * 32 * (6 + 8) + repeated


# docs/decisions/tasks.md: Families without a kernel of PyTorch's attend by blocks
@pytest.mark.parametrize(
    ("name", "changes", "kept"),
    [
        ("google/gemma-2-9b", {}, False),
        ("google/gemma-2-9b", {"machine__device": "cpu"}, True),
        ("google/gemma-2-9b", {"data__packing": False}, True),
        ("google/gemma-2-9b", {"model__attention": "sdpa", "data__packing": False}, False),
        ("google/gemma-2-9b", {"task": "reward_model"}, True),
        ("EleutherAI/gpt-j-6b", {}, True),
        ("meta-llama/Llama-3.1-8B", {"data__packing": False}, False),
    ],
)
def test_scores_count_where_transformers_has_no_kernel_for_a_family(
    name: str, changes: dict[str, Any], kept: bool
) -> None:
    """8,192 tokens have 2 GiB of scores in each layer of Gemma 2 9B, in 16 bits."""
    shape = known(name)
    assert shape
    values = {"task": "sft", "model__name": name, "model__from_scratch": False, "precision__mixed_precision": "bf16"}
    values |= {"machine__device": "cuda", "batch__sequence_length": 2048, "model__activation_checkpointing": "full"}
    plan = make(**{**values, **changes})
    assert work_of(plan, shape.parameters, shape).keeps_scores is kept


def test_what_eager_attention_keeps_is_in_the_estimate_of_a_plan() -> None:
    llama = known("meta-llama/Llama-3.1-8B")
    assert llama
    values = {"task": "sft", "model__name": "meta-llama/Llama-3.1-8B", "model__from_scratch": False}
    values |= {"machine__device": "cuda", "precision__mixed_precision": "bf16", "batch__sequence_length": 8192}
    auto, eager = (
        estimate(make(**values, model__attention=how), llama.parameters, llama).activation_bytes_per_rank
        for how in ("auto", "eager")
    )
    assert eager - auto > 32 * 32 * 6 * 8192**2 * make(**values).batch.per_device_batch_size


def test_speed_by_what_bounds_it() -> None:
    """More compute, a slower link, a smaller micro-batch: each makes the part longer that it belongs to."""
    llama, a100 = known("llama-3-8b"), gpu_model("NVIDIA A100-SXM4-80GB")
    assert llama
    assert a100
    work = Work(parameters=llama.parameters, transformer=llama, precision="bf16", world=8, samples=4, length=4096)
    plain, sharded = (pace(labeled(label), work, a100) for label in ("ddp", "fsdp"))
    again = pace(labeled("ddp"), replace(work, checkpointing="full"), a100)
    slow = pace(labeled("fsdp"), work, a100, ranks_per_machine=4, network=1e9)
    assert plain
    assert sharded
    assert again
    assert slow
    assert sharded.communication == pytest.approx(plain.communication * 6 / 8)
    assert 1.25 < again.compute / plain.compute < 1.4
    assert slow.seconds > slow.communication > 5 * sharded.seconds
    away = replace(work, optimizer_offloaded=True, parameters_offloaded=True)
    near, far = (pace(labeled("zero3"), one, a100) for one in (work, away))
    assert near
    assert far
    # Weights twice and gradients once over PCIe; Adam in the host's memory.
    assert far.communication - near.communication == pytest.approx(3 * 2 * llama.parameters / 8 / 25e9)
    assert far.step > 20 * near.step
    assert pace(labeled("ddp"), replace(work, transformer=None), a100) is None
    others = ("an unheard-of GPU", "NVIDIA RTX A1000", "RTX A400", "Quadro P1000", "NVIDIA RTX A1000 6GB", "H1000")
    assert [name for name in others if gpu_model(name)] == []


def test_fp8_gains_what_its_products_reach_less_the_casts() -> None:
    llama, h100 = known("llama-3-8b"), gpu_model("NVIDIA H100 80GB HBM3")
    assert llama
    assert h100
    half = Work(parameters=llama.parameters, transformer=llama, precision="bf16", samples=2, length=4096)
    casts = replace(half, precision="fp8")
    speed = [pace(labeled("single"), work, h100) for work in (half, casts, replace(casts, fused_casts=True))]
    tokens = [one.tokens_per_second for one in speed if one]
    assert 1.2 < tokens[1] / tokens[0] < tokens[2] / tokens[0] < 1.7
    assert pace(labeled("single"), casts, replace(h100, fp8_flops=None)) == speed[0]


def test_every_gpu_is_found_by_its_own_name_and_by_nvmls() -> None:
    for model in MODELS:
        assert gpu_model(model.name) == model
        assert gpu_model(f"NVIDIA GeForce RTX {model.name} Laptop GPU") is None
        assert model.source.startswith("https://")
    names = {
        "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
        "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
        "NVIDIA H100 NVL": "H100-NVL",
        "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
        "NVIDIA RTX A6000": "A6000",
        "NVIDIA GeForce RTX 4070 Ti SUPER": "4070-Ti-Super",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000",
        "Tesla V100-SXM2-16GB": "V100-16GB",
        "Tesla P100-PCIE-16GB": "P100",
    }
    found = {name: gpu_model(name) for name in names}
    assert {name: model and model.name for name, model in found.items()} == names


def test_less_power_is_a_slower_clock() -> None:
    h100 = gpu_model("H100")
    assert h100
    assert h100.limited(None) == h100.limited(h100.watts) == h100.limited(2 * h100.watts) == h100
    slower = h100.limited(500)
    assert slower.half_flops / h100.half_flops == pytest.approx(0.8, rel=0.01)
    assert slower.bandwidth == h100.bandwidth


def test_a_model_that_is_built_in_parts_needs_no_host_memory() -> None:
    values = {"machine__num_processes": 8, "strategy__kind": "deepspeed", "strategy__zero_stage": 3}
    whole, parts = (estimate(make(**values, strategy__zero3_init=init), 8 * B) for init in (False, True))
    assert (whole.load_bytes_per_machine, parts.load_bytes_per_machine) == (8 * 4 * 8 * B, 0)


@pytest.mark.parametrize("task", ["custom", "image_classification"])
def test_a_model_that_task_py_makes_is_built_once_where_it_is_sharded(task: str) -> None:
    values = {"machine__num_processes": 8, "task": task, "strategy__kind": "deepspeed"}
    for init in (False, True):  # zero.Init shards it once it is built
        cut = make(**values, strategy__zero_stage=3, strategy__zero3_init=init)
        assert estimate(cut, 8 * B).load_bytes_per_machine == 4 * 8 * B
    assert estimate(make(**values, strategy__zero_stage=2), 8 * B).load_bytes_per_machine == 8 * 4 * 8 * B
    assert estimate(make(**{**values, "strategy__kind": "fsdp"}), 8 * B).load_bytes_per_machine == 4 * 8 * B


@pytest.mark.parametrize(
    ("adapter", "kind", "precision", "expected"),
    [
        ("none", "ddp", "bf16", 8 * 4 * B),
        ("none", "fsdp", "bf16", 4 * B),
        ("lora", "ddp", "bf16", 8 * 2 * B),
        ("lora", "ddp", "fp16", 8 * 2 * B),
        ("lora", "ddp", "no", 8 * 4 * B),
        ("lora", "deepspeed", "bf16", 8 * 2 * B),
        ("lora", "deepspeed", "no", 8 * 4 * B),
        ("none", "deepspeed", "bf16", 8 * 4 * B),
        ("lora", "fsdp", "bf16", 2 * B + 8 * 4 * trained_parameters(B, "lora", 16)),
        ("lora", "fsdp", "no", 4 * B + 8 * 4 * trained_parameters(B, "lora", 16)),
        ("qlora", "ddp", "bf16", 8 * B),
        # Of unknown layers: rank 0 may have to load all of it in 16 bits.
        ("qlora", "fsdp", "bf16", 2 * B + 8 * 4 * trained_parameters(B, "qlora", 16)),
        ("qlora", "fsdp", "no", 4 * B + 8 * 4 * trained_parameters(B, "qlora", 16)),
    ],
)
def test_what_ranks_build_in_host_memory(adapter: str, kind: str, precision: str, expected: int) -> None:
    values = {"machine__num_processes": 8, "strategy__kind": kind, "precision__mixed_precision": precision}
    values |= {"strategy__zero_stage": 2} if kind == "deepspeed" else {}
    plan = make(task="sft", model__name="org/model", model__adapter=adapter, model__from_scratch=False, **values)
    assert estimate(plan, B).load_bytes_per_machine == expected


@pytest.mark.parametrize("kind", ["ddp", "deepspeed", "fsdp"])
def test_weights_in_four_bits_are_read_one_by_one(kind: str) -> None:
    """Each goes to bitsandbytes on the GPU; on a CPU, what becomes of it stays in host memory, shards under FSDP."""
    large = known("meta-llama/Llama-2-70b-hf")
    assert large
    values = {"machine__num_processes": 8, "strategy__kind": kind, "precision__mixed_precision": "bf16"}
    values |= {"strategy__zero_stage": 3} if kind == "deepspeed" else {}
    values |= {"model__name": "org/model", "model__adapter": "qlora", "model__from_scratch": False}
    gpu, cpu = (make(task="sft", **values, machine__device=device) for device in ("cuda", "cpu"))
    one = 2 * max(large.largest_layer, large.largest_table)
    adapters = 4 * trained_parameters(large.parameters, "qlora", 16)
    assert estimate(gpu, large.parameters, large).load_bytes_per_machine == 8 * (one + adapters)
    on_cpu = estimate(cpu, large.parameters, large).load_bytes_per_machine
    assert on_cpu == (one + 8 * adapters if kind == "fsdp" else 8 * large.parameters)


@pytest.mark.parametrize(
    ("changed", "onto"),
    [
        ({}, True),
        ({"strategy__kind": "deepspeed", "strategy__zero_stage": 2}, True),
        ({"strategy__kind": "deepspeed", "strategy__zero_stage": 3}, False),
        ({"data__added_tokens": "<a>"}, False),
        ({"task": "reward_model"}, False),
        ({"machine__device": "cpu"}, False),
    ],
)
def test_frozen_weights_that_each_gpu_holds_are_loaded_onto_it(changed: dict[str, Any], onto: bool) -> None:
    """A layer or the embeddings of each rank are in host memory at a time, in 16 bits, and the adapters."""
    eight = known("meta-llama/Llama-3.1-8B")
    assert eight
    values = {"task": "sft", "strategy__kind": "ddp", "machine__num_processes": 8, "precision__mixed_precision": "bf16"}
    values |= {"model__name": "org/model", "model__adapter": "lora", "model__from_scratch": False}
    plan = make(**{**values, "machine__device": "cuda", **changed})
    assert loaded_onto_device(plan) == onto
    adapter = 8 * 4 * trained_parameters(eight.parameters, "lora", 16)
    expected = 8 * 2 * 128256 * 4096 + adapter if onto else 8 * 2 * eight.parameters
    assert estimate(plan, eight.parameters, eight).load_bytes_per_machine == expected


def test_ranks_that_read_their_shards_hold_no_whole_model() -> None:
    """A rank's rows of a tensor at a time, of families that transformers loads as they are saved."""
    values = {"machine__num_processes": 8, "strategy__kind": "fsdp", "model__name": "org/model"}
    eight, mixture = known("meta-llama/Llama-3.1-8B"), known("mistralai/Mixtral-8x7B-v0.1")
    assert eight
    assert mixture
    loads = make(task="sft", model__from_scratch=False, **values)
    assert estimate(loads, eight.parameters, eight).load_bytes_per_machine == 4 * 128256 * 4096
    assert estimate(loads, mixture.parameters, mixture).load_bytes_per_machine == 4 * mixture.parameters
    adapted = estimate(
        make(task="sft", model__from_scratch=False, model__adapter="lora", precision__mixed_precision="bf16", **values),
        eight.parameters,
        eight,
    )
    adapter = 8 * 4 * trained_parameters(eight.parameters, "lora", 16)
    assert adapted.load_bytes_per_machine == 2 * 128256 * 4096 + adapter
    for change in ({"data__added_tokens": "<a>"}, {"model__modules_to_save": "lm_head", "model__adapter": "lora"}):
        told = make(task="sft", model__from_scratch=False, **values, **change)
        assert estimate(told, eight.parameters, eight).load_bytes_per_machine >= 4 * eight.parameters, change
    new = make(task="sft", model__from_scratch=True, **values)
    assert estimate(new, eight.parameters, eight).load_bytes_per_machine == 4 * eight.parameters


def test_zero_3_moves_the_whole_model_to_the_device_unless_it_is_built_in_parts() -> None:
    values = {"strategy__kind": "deepspeed", "machine__num_processes": 8, "precision__mixed_precision": "bf16"}
    for stage, init, expected in ((3, False, 2 * B), (3, True, 0), (2, False, 0)):
        plan = make(**values, strategy__zero_stage=stage, strategy__zero3_init=init)
        assert estimate(plan, B).whole_bytes_per_rank == expected


def test_weights_in_four_bits_are_whole_on_each_device_first() -> None:
    """Seen on two CPU ranks: 427,264 bytes of a model with 0.2M parameters on each, zero.Init or not (TW557)."""
    eight = known("meta-llama/Llama-3.1-8B")
    assert eight
    values = {"strategy__kind": "deepspeed", "strategy__zero_stage": 3, "machine__num_processes": 8}
    plan = make(task="sft", model__name="org/model", model__adapter="qlora", model__from_scratch=False, **values)
    found = estimate(plan, eight.parameters, eight)
    assert found.whole_bytes_per_rank == four_bit_bytes(eight.parameters, eight.linear_weights)
    assert 5.5e9 < found.whole_bytes_per_rank < 5.9e9


def test_frozen_weights_that_are_offloaded_are_in_host_memory() -> None:
    eight = known("meta-llama/Llama-3.1-8B")
    assert eight
    values = {"strategy__kind": "deepspeed", "strategy__zero_stage": 3, "machine__num_processes": 8}
    values |= {"task": "sft", "model__name": "org/model", "model__from_scratch": False, "model__adapter": "lora"}
    values |= {"precision__mixed_precision": "bf16"}
    on_device, on_host = (
        estimate(make(**values, strategy__offload_param_device=place), eight.parameters, eight)
        for place in ("none", "cpu")
    )
    moved = on_device.device_bytes_per_rank - on_host.device_bytes_per_rank
    host = on_host.host_bytes_per_machine - on_device.host_bytes_per_machine
    assert host == pytest.approx(2 * eight.parameters, rel=0.03)
    assert moved == pytest.approx(host / 8, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "bytes_per_parameter"),
    [
        ({}, 16),
        ({"optimizer.name": "sgd"}, 12),
        ({"optimizer.name": "lion"}, 12),
        ({"optimizer.name": "adafactor"}, 8),
        ({"optimizer.name": "adamw_8bit"}, 10),
        ({"optimizer.ema_decay": 0.99}, 20),
        ({"precision.mixed_precision": "bf16", "precision.weights": "bfloat16"}, 8),
        ({"precision.mixed_precision": "bf16", "precision.weights": "bfloat16", "optimizer.name": "lion"}, 6),
    ],
)
def test_state_follows_the_optimizer_and_the_weights(changes: dict[str, object], bytes_per_parameter: int) -> None:
    """Weight, gradient, and what the optimizer keeps; a checkpoint has all but the gradient."""
    found = estimate(make(**{"strategy.kind": "ddp", **changes}), 10**6)
    assert found.device_bytes_per_rank == bytes_per_parameter * 10**6
    gradient = 2 if "precision.weights" in changes else 4
    assert found.checkpoint_bytes == (bytes_per_parameter - gradient) * 10**6
