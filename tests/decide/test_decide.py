"""Answers and machines become plans whose every value has a source."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwiz import plan as plans
from trainwiz import rules, strategies
from trainwiz.decide import Decided, Source, decide, memory_bar
from trainwiz.decide.earlier_answers import carry, without_replaced
from trainwiz.errors import PlanError
from trainwiz.estimate import estimate
from trainwiz.estimate.device import Needs
from trainwiz.estimate.forecast import forecast
from trainwiz.machine import Cpu, Gpu, Machine, Memory
from trainwiz.message import say
from trainwiz.models import known, of_parameters
from trainwiz.project import Amount, DataFacts, ModelFacts
from trainwiz.store import machines
from trainwiz.tasks.shapes import DECODERS

FOLDER = Path(__file__).parents[1] / "machines"
NAMES = ("8xh100", "4xa100-40g", "2xrtx4090", "1xt4", "8xv100", "cpu")


def machine(name: str) -> Machine:
    return machines.read(FOLDER / f"{name}.json")


def sized(parameters: int | None) -> ModelFacts:
    """A model of which only the number of parameters is known, by its name."""
    shape = of_parameters(parameters) if parameters else None
    source: str | None = "name" if parameters else None
    return ModelFacts(
        name="some/model", kind="hub", parameters=parameters, size_source=source, transformer=shape, assumed=True
    )


def counted(samples: int | None) -> DataFacts:
    return DataFacts(name="embedded", kind="embedded", samples=samples)


def known_as(name: str) -> ModelFacts:
    """A model of the table of well-known ones."""
    shape = known(name)
    assert shape
    return ModelFacts(name=name, kind="hub", parameters=shape.parameters, size_source="table", transformer=shape)


def why(decided: Decided, key: str) -> str:
    return str(decided.sources[key].reason)


def test_a_picture_in_a_table_is_shown_by_its_name_and_size() -> None:
    row = {"id": 7, "img": {"bytes": b"\x89PNG" + bytes(12000), "path": "pets/1.png"}, "label": "cat"}
    data = DataFacts(name="pets.parquet", kind="file", first=row)
    answers = {"task": "image_classification", "data.train": "pets.parquet"}
    decided = decide(answers, machine("8xh100"), data=data)
    assert decided.plan.data.image_column == "img"
    assert why(decided, "data.image_column") == "in the first row: pets/1.png (11.7 KiB)"
    nameless = replace(data, first={**row, "img": {"bytes": b"\x89PNG", "path": None}})
    assert why(decide(answers, machine("8xh100"), data=nameless), "data.image_column") == "in the first row: (4 B)"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", ["tiny", "gpt2-124m", "llama-1b", "some/model"])
@pytest.mark.parametrize("task", ["causal_lm", "sft", "text_classification", "image_classification", "custom"])
def test_every_value_has_a_reason_and_the_batch_holds(name: str, model: str, task: str) -> None:
    decided = decide({"model.name": model, "task": task}, machine(name))
    assert set(decided.sources) == set(plans.fields()) - {"version"}
    assert all(str(source.reason) for source in decided.sources.values())
    b = decided.plan.batch
    assert b.real_batch_size == b.per_device_batch_size * b.gradient_accumulation_steps * (
        decided.plan.machine.num_processes
    )


@pytest.mark.parametrize(
    ("name", "device", "world", "precision", "strategy"),
    [
        ("8xh100", "cuda", 8, "bf16", "ddp"),
        ("4xa100-40g", "cuda", 4, "bf16", "ddp"),
        ("2xrtx4090", "cuda", 2, "bf16", "ddp"),
        ("1xt4", "cuda", 1, "fp16", "single"),
        ("8xv100", "cuda", 8, "fp16", "ddp"),
        ("cpu", "cpu", 2, "no", "ddp"),
    ],
)
def test_what_a_machine_decides(name: str, device: str, world: int, precision: str, strategy: str) -> None:
    decided = decide({}, machine(name))
    plan = decided.plan
    assert (plan.machine.device, plan.machine.num_processes) == (device, world)
    assert plan.precision.mixed_precision == precision
    assert plan.strategy.label == strategy
    assert decided.sources["machine.num_processes"].kind == "found"


def test_a_default_says_what_was_found() -> None:
    decided = decide({}, machine("8xh100"))
    assert why(decided, "machine.num_processes").startswith("8 × H100")
    assert "compute capability 9.0" in why(decided, "precision.mixed_precision")


@pytest.mark.parametrize(
    ("name", "parameters", "strategy", "offload"),
    [
        ("8xh100", 7_000_000_000, "zero2", "none"),
        ("4xa100-40g", 4_000_000_000, "fsdp", "none"),
        ("4xa100-40g", 7_000_000_000, "fsdp", "none"),
        ("2xrtx4090", 1_000_000_000, "zero2", "none"),
        ("2xrtx4090", 3_000_000_000, "zero2", "cpu"),
        ("1xt4", 1_000_000_000, "deepspeed", "cpu"),
        ("8xh100", 70_000_000_000, "zero3", "cpu"),
    ],
)
def test_the_fastest_strategy_that_fits(name: str, parameters: int, strategy: str, offload: str) -> None:
    plan = decide({"model.name": "some/model"}, machine(name), model=sized(parameters)).plan
    assert strategy in (plan.strategy.label, plan.strategy.kind)
    assert plan.strategy.offload_optimizer_device == offload


@pytest.mark.parametrize(
    ("model", "name", "adapter", "label"),
    [
        ("Qwen/Qwen2.5-7B", "2xrtx4090", "lora", "ddp"),
        ("Qwen/Qwen2.5-7B", "1xt4", "qlora", "single"),
        ("Qwen/Qwen2.5-7B", "4xa100-40g", "lora", "fsdp"),
        ("Qwen/Qwen2.5-7B", "8xv100", "none", "fsdp"),
        ("Qwen/Qwen2.5-0.5B", "1xt4", "none", "single"),
        ("Qwen/Qwen2.5-7B", "cpu", "none", "ddp"),
        ("Qwen/Qwen3-30B-A3B", "4xa100-40g", "qlora", "zero2"),
        ("mistralai/Mixtral-8x7B-v0.1", "8xv100", "lora", "fsdp"),
    ],
)
def test_what_fits_is_trained(model: str, name: str, adapter: str, label: str) -> None:
    plan = decide({"task": "sft", "model.name": model}, machine(name), model=known_as(model)).plan
    assert (plan.model.adapter, plan.strategy.label) == (adapter, label)
    assert plan.strategy.offload_optimizer_device == "none"


def test_four_bits_are_not_the_default_where_16_are_as_fast() -> None:
    """Shards of frozen weights travel over NVLink while layers are computed, and are not unpacked."""
    model = "meta-llama/Llama-3.1-70B"
    answers = {"task": "sft", "model.name": model, "batch.sequence_length": 8192}
    decided = decide(answers, machine("8xh100"), model=known_as(model))
    assert (decided.plan.model.adapter, decided.plan.strategy.label) == ("lora", "zero3")
    assert "as fast as qlora" in why(decided, "model.adapter")
    # 16 bits beside DDP do not leave much of a GPU, but shards over PCIe would be slower than four.
    model = "meta-llama/Llama-3.1-8B"
    small = decide({"task": "sft", "model.name": model}, machine("2xrtx4090"), model=known_as(model))
    assert small.plan.model.adapter == "qlora"


def test_what_all_weights_need_is_said_of_the_gpus_where_they_fit_these() -> None:
    """Offload would need 19 GiB of a GPU that has 192, and was given as the reason for an adapter."""
    large = machine("8xh100")
    gpus = tuple(replace(gpu, name="AMD Instinct MI300X", memory_bytes=192 * 2**30) for gpu in large.gpus)
    model = "meta-llama/Llama-3.1-70B"
    answers = {"task": "sft", "model.name": model, "batch.sequence_length": 8192}
    whole = decide(answers, replace(large, gpus=gpus), model=known_as(model)).methods[0]
    assert not whole.strategy.endswith("+offload")
    assert whole.fits
    assert not whole.roomy


@pytest.mark.parametrize("gpus", [1, 2])
def test_experts_in_four_bits_fit_on_two_gpus(gpus: int) -> None:
    """29e9 of 30.5e9 weights are routed experts: 54 GiB, or 14 in four bits; an adapter's state beside them is not.

    On one GPU, the adapter's gradients in fp32 do not fit beside them, so that the weights stay in host memory.
    """
    model, several = "Qwen/Qwen3-30B-A3B", machine("2xrtx4090")
    made = decide(
        {"task": "sft", "model.name": model}, replace(several, gpus=several.gpus[:gpus]), model=known_as(model)
    )
    strategy = made.plan.strategy
    found = made.plan.model.adapter, strategy.label, strategy.offload_optimizer_device, strategy.offload_param_device
    assert found == (("qlora", "fsdp", "none", "none") if gpus == 2 else ("lora", "zero3", "cpu", "cpu"))
    assert [way.fits for way in made.methods if way.adapter == "qlora"] == [gpus == 2]


def test_a_machine_too_small_for_all_weights_says_so() -> None:
    model = "mistralai/Mixtral-8x7B-v0.1"
    small = replace(machine("8xv100"), memory=Memory(total_bytes=200 * 2**30))
    made = decide({"task": "sft", "model.name": model}, small, model=known_as(model))
    assert why(made, "model.adapter") == "fits on the GPUs; training all weights does not fit, even with host memory"


@pytest.mark.parametrize(
    ("name", "gpus", "length"), [("2xrtx4090", 2, 512), ("2xrtx4090", 4, 4096), ("4xa100-40g", 2, 4096)]
)
def test_four_bits_that_are_whole_on_no_gpu_are_sharded_by_fsdp(name: str, gpus: int, length: int) -> None:
    """ZeRO 3 would be given all of them on each GPU first (TW329), and LoRA needs 132 GiB of host memory."""
    model, gpu = "meta-llama/Llama-2-70b-hf", machine(name).gpus[0]
    several = replace(machine(name), gpus=tuple(replace(gpu, index=index) for index in range(gpus)))
    made = decide({"task": "sft", "model.name": model}, several, model=known_as(model))
    assert (made.plan.model.adapter, made.plan.strategy.label) == ("qlora", "fsdp")
    assert made.plan.strategy.offload_param_device == "none"
    assert made.plan.batch.sequence_length == length
    assert [way.strategy for way in made.methods if way.adapter == "qlora"] == ["fsdp"]


def test_a_method_that_cannot_be_loaded_shows_what_loading_needs() -> None:
    """ZeRO 3 is given experts in 16 bits and the rest in four, all on each GPU, before it cuts them."""
    model = "mistralai/Mixtral-8x22B-v0.1"
    made = decide({"task": "sft", "model.name": model}, machine("2xrtx4090"), model=known_as(model))
    [way] = [way for way in made.methods if way.adapter == "qlora"]
    assert way.fits is False
    assert way.bytes_per_rank > 240 * 2**30


def test_what_fits_only_with_host_memory_takes_little_of_it() -> None:
    model = "meta-llama/Llama-2-70b-hf"
    roomy = replace(machine("1xt4"), memory=Memory(total_bytes=2000 * 2**30))
    made = decide({"task": "sft", "model.name": model}, roomy, model=known_as(model))
    assert (made.plan.model.adapter, made.plan.strategy.offload_param_device) == ("lora", "cpu")
    # 2 bytes of each of 69e9 frozen weights; 20 of each trained one; activations.
    assert re.fullmatch(
        r"needs 13\d GiB of host memory on each machine; training all weights needs 1\.3 TiB",
        why(made, "model.adapter"),
    )


@pytest.mark.parametrize(
    ("model", "memory", "answers", "adapter", "ranks", "precision"),
    [
        ("Qwen/Qwen2.5-0.5B", 24, {}, "none", 2, "no"),
        ("Qwen/Qwen2.5-0.5B", 16, {}, "none", 1, "no"),
        ("Qwen/Qwen2.5-1.5B", 24, {}, "lora", 2, "no"),
        ("Qwen/Qwen2.5-3B", 24, {}, "lora", 1, "no"),
        ("Qwen/Qwen2.5-7B", 24, {}, "lora", 1, "bf16"),
        ("Qwen/Qwen2.5-7B", 288, {}, "none", 2, "no"),
        ("Qwen/Qwen2.5-7B", 12, {}, "none", 2, "no"),  # nothing fits: TW324 says so
        ("Qwen/Qwen2.5-1.5B", 24, {"model.adapter": "none"}, "none", 2, "no"),
        ("Qwen/Qwen2.5-7B", 24, {"precision.mixed_precision": "no"}, "none", 2, "no"),
        ("Qwen/Qwen2.5-3B", 24, {"machine.num_processes": 2}, "lora", 2, "bf16"),
        ("Qwen/Qwen2.5-1.5B", 24, {"task": "causal_lm"}, "none", 2, "no"),
    ],
)
def test_what_fits_is_trained_without_a_gpu(
    model: str, memory: int, answers: dict[str, Any], adapter: str, ranks: int, precision: str
) -> None:
    here = Machine(cpu=Cpu(usable_cores=2), memory=Memory(total_bytes=memory * 2**30))
    plan = decide({"task": "sft", "model.name": model, **answers}, here, model=known_as(model)).plan
    assert (plan.model.adapter, plan.machine.num_processes, plan.precision.mixed_precision) == (
        adapter,
        ranks,
        precision,
    )


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B"])
def test_a_default_for_the_cpu_fits_by_what_the_planner_says(model: str) -> None:
    here, known = Machine(cpu=Cpu(usable_cores=2), memory=Memory(total_bytes=24 * 2**30)), known_as(model)
    data = DataFacts(name="mine.jsonl", kind="file", amount=Amount(documents=10**5, different=10**5, tokens=10**8))
    made = decide({"task": "sft", "model.name": model, "data.train": "mine.jsonl"}, here, model=known, data=data)
    assert made.plan.batch.real_batch_size >= made.plan.machine.num_processes
    each = forecast(made.plan, known.parameters or 0, known.transformer, None).host_bytes or 0
    assert 0 < each * made.plan.machine.num_processes <= 24 * 2**30


def test_the_strategies_of_cpu_ranks_count_the_process_as_the_forecast_does() -> None:
    machine_cpu = machine("cpu")
    shown = {option.name: option.total_bytes_per_rank for option in decide({}, machine_cpu).options}
    for name, answers in (
        ("ddp", {}),
        ("fsdp", {"strategy.kind": "fsdp"}),
        ("zero2", {"strategy.zero_stage": 2}),
        ("zero3+offload", {"strategy.zero_stage": 3, "strategy.offload_param_device": "cpu"}),
    ):
        made = decide(answers, machine_cpu)
        whole = forecast(made.plan, made.outlook.parameters or 0, DECODERS["tiny"].transformer, None).host_bytes
        assert whole
        assert 0.8 * whole < shown[name] <= whole, (name, shown[name], whole)


def test_a_chosen_strategy_is_meant_for_all_weights() -> None:
    model = "Qwen/Qwen2.5-7B"
    answers = {"task": "sft", "model.name": model, "strategy.offload_optimizer_device": "cpu"}
    assert decide(answers, machine("2xrtx4090"), model=known_as(model)).plan.model.adapter == "none"


@pytest.mark.parametrize("given", [{}, {"batch.sequence_length": 2048}, {"batch.real_batch_size": 8}])
def test_an_adapter_has_one_number_in_its_reason_the_list_and_the_bar(given: dict[str, int]) -> None:
    # The reason is first given before the length and the micro-batch are decided.
    model = "meta-llama/Llama-3.1-8B"
    made = decide({"task": "sft", "model.name": model, **given}, machine("2xrtx4090"), model=known_as(model))
    chosen = made.plan.model.adapter
    assert chosen == "qlora"
    ways = {way.adapter: way for way in made.methods}
    needed = made.outlook.peak_bytes
    assert (ways[chosen].bytes_per_rank, ways[chosen].planned, ways["none"].planned) == (needed, True, False)
    reason = why(made, "model.adapter")
    whole = ways["none"]
    assert reason.startswith(f"{ways[chosen].shown} per rank fits; training all weights needs "), reason
    assert reason.endswith(f"{whole.shown} with {whole.strategy}"), reason
    [option] = [option for option in made.options if option.planned]
    assert option.name == made.plan.strategy.label
    assert option.total_bytes_per_rank == needed


def test_what_was_answered_keeps_its_source_beside_the_plan_s_number() -> None:
    model = "Qwen/Qwen2.5-7B"
    answers = {"task": "sft", "model.name": model, "model.adapter": "qlora"}
    made = decide(answers, machine("2xrtx4090"), model=known_as(model))
    assert why(made, "model.adapter") == "your answer"
    assert [way.bytes_per_rank for way in made.methods if way.planned] == [made.outlook.peak_bytes]


def test_each_way_to_train_shows_its_bytes() -> None:
    model = "Qwen/Qwen2.5-7B"
    made = decide({"task": "sft", "model.name": model}, machine("2xrtx4090"), model=known_as(model))
    assert [(way.adapter, way.strategy) for way in made.methods] == [
        ("none", "zero3+offload"),
        ("lora", "zero3"),
        ("qlora", "ddp"),
    ]
    new = decide({"task": "sft", "model.name": "llama-1b"}, machine("2xrtx4090"))
    assert [way.adapter for way in new.methods] == ["none"], "an adapter needs trained weights"
    assert decide({"task": "image_classification"}, machine("2xrtx4090")).methods == ()


def test_the_recommendation_shows_its_numbers() -> None:
    decided = decide({"model.name": "some/model"}, machine("8xh100"), model=sized(7_000_000_000))
    reason = why(decided, "strategy.kind")
    assert re.fullmatch(
        r"forecast for 8 × NVIDIA H100 80GB HBM3: 8\d,\d{3} tokens/s, using 6\d\.\d GiB of 79\.6 GiB; "
        r"ddp needs 119 GiB",
        reason,
    )
    assert "nothing is faster" in why(decide({}, machine("8xh100")), "strategy.kind")
    slower = decide({"model.name": "llama-1b"}, machine("8xh100"))
    assert re.search(r"; ddp: \d+,\d{3}$", why(slower, "strategy.kind"))
    huge = decide({"model.name": "some/model"}, machine("1xt4"), model=sized(70_000_000_000))
    # All is in host memory but the elements that are reduced at once, two bytes each.
    assert why(huge, "strategy.kind").startswith("95.4 MiB of model state per rank fits in 60% of 15.0 GiB")


def test_a_gpu_of_unknown_capability_stays_unknown() -> None:
    gpu = Gpu(index=0, name="X1", memory_bytes=2**34)
    decided = decide({}, Machine(gpus=(gpu,)))
    assert decided.plan.precision.mixed_precision == "no"
    assert "unknown" in why(decided, "precision.mixed_precision")


def test_the_oldest_gpu_decides_precision() -> None:
    gpus = tuple(
        Gpu(index=i, name=f"G{c}", memory_bytes=2**34, compute_capability=(c, 0)) for i, c in enumerate((8, 7))
    )
    assert decide({}, Machine(gpus=gpus)).plan.precision.mixed_precision == "fp16"


def test_without_a_machine_one_cpu_rank() -> None:
    plan = decide({}, None).plan
    assert (plan.machine.device, plan.machine.num_processes, plan.strategy.kind) == ("cpu", 1, "single")


def test_one_core_is_one_rank() -> None:
    assert decide({}, Machine(cpu=Cpu(usable_cores=1))).plan.machine.num_processes == 1


@pytest.mark.parametrize(
    ("answers", "key", "expected"),
    [
        ({"strategy.kind": "single"}, "machine.num_processes", 1),
        ({"machine.num_processes": 1}, "strategy.kind", "single"),
        ({"strategy.zero_stage": 3}, "strategy.kind", "deepspeed"),
        ({"strategy.kind": "deepspeed"}, "strategy.zero_stage", 2),
        ({"strategy.zero_stage": 3}, "strategy.zero3_save_16bit_model", True),
        ({"strategy.offload_optimizer_device": "cpu"}, "strategy.zero_stage", 2),
        ({"strategy.offload_param_device": "cpu"}, "strategy.zero_stage", 3),
        ({"strategy.offload_optimizer_device": "nvme"}, "strategy.zero_stage", 3),
        ({"strategy.kind": "fsdp"}, "strategy.zero_stage", None),
        ({"schedule.n_epochs": 3}, "schedule.train_strategy", "epochs"),
        ({"schedule.n_epochs": 3}, "schedule.n_steps", None),
        ({"schedule.n_steps": 50}, "schedule.n_warmup_steps", 5),
        ({"machine.num_machines": 2}, "machine.num_processes", 16),
        ({"machine.device": "cpu"}, "machine.num_processes", 2),
        ({"machine.device": "cpu"}, "precision.mixed_precision", "no"),
        ({"data.train": "my.txt"}, "data.eval", None),
        ({"model.name": "some/model"}, "model.from_scratch", False),
        ({"model.name": "gpt2-124m"}, "optimizer.learning_rate", 6e-4),
        ({"model.name": "gpt2-124m"}, "batch.sequence_length", 1024),
        ({"model.name": "gpt2-124m", "model.from_scratch": False}, "optimizer.learning_rate", 2e-5),
        ({"optimizer.name": "sgd"}, "optimizer.learning_rate", 0.1),
        ({"task": "custom"}, "optimizer.weight_decay", 0.0),
        ({"batch.real_batch_size": 64, "batch.per_device_batch_size": 4}, "batch.gradient_accumulation_steps", 2),
        ({"batch.real_batch_size": 64, "batch.gradient_accumulation_steps": 4}, "batch.per_device_batch_size", 2),
        ({"batch.per_device_batch_size": 3, "batch.gradient_accumulation_steps": 5}, "batch.real_batch_size", 120),
    ],
)
def test_what_is_not_answered_follows_what_is(answers: dict[str, Any], key: str, expected: Any) -> None:
    decided = decide(answers, machine("8xh100"))
    assert decided.plan.get(key) == expected
    for given_key, value in answers.items():
        assert decided.plan.get(given_key) == value
        assert decided.sources[given_key].kind == "yours"
    assert decided.sources[key].kind != "yours"


def test_an_adapter_has_a_rate_of_its_own_and_fits_where_all_weights_do_not() -> None:
    answers = {"task": "sft", "model.name": "org/seven-billion"}
    for adapter, strategy, rate in (("none", "zero2", 2e-5), ("lora", "ddp", 2e-4)):
        decided = decide({**answers, "model.adapter": adapter}, machine("8xh100"), model=sized(7 * 10**9))
        assert (decided.plan.strategy.label, decided.plan.optimizer.learning_rate) == (strategy, rate)
        assert decided.plan.model.lora_alpha == 32
    assert decide({**answers, "model.lora_rank": 8}, None).plan.model.lora_alpha == 16
    assert not decide({"task": "custom"}, None).plan.data.packing


@pytest.mark.parametrize(
    ("name", "model", "answers", "micro"),
    [
        ("8xh100", "llama-1b", {}, 16),
        ("4xa100-40g", "llama-1b", {}, 4),  # 4.4 GiB a sample, beside 6.7 GiB under ZeRO 2
        ("2xrtx4090", "llama-1b", {}, 2),  # under ZeRO 2, which casts its weights itself
        ("2xrtx4090", "llama-1b", {"batch.sequence_length": 1024}, 4),
        ("2xrtx4090", "llama-1b", {"precision.mixed_precision": "no"}, 1),  # under DDP, results of matrices kept
        ("4xa100-40g", "llama-1b", {"batch.sequence_length": 1980}, 8),
        ("1xt4", "llama-1b", {"precision.mixed_precision": "no"}, 1),  # where nothing fits
        ("1xt4", "gpt2-124m", {}, 8),
        ("cpu", "gpt2-124m", {}, 8),
    ],
)
def test_the_micro_batch_fits_beside_the_model_state(
    name: str, model: str, answers: dict[str, Any], micro: int
) -> None:
    decided = decide({"model.name": model, **answers}, machine(name))
    assert decided.plan.batch.per_device_batch_size == micro


@pytest.mark.parametrize("strategy", [row.label for row in strategies.every() if not row.one_rank])
def test_no_strategy_forgets_activations(strategy: str) -> None:
    """58 GiB of them or more at micro-batch 4, on a GPU of 40 GiB."""
    row = strategies.labeled(strategy)
    answers = {"strategy.kind": row.kind, "strategy.zero_stage": row.zero_stage, "batch.sequence_length": 8192}
    here = machine("4xa100-40g")
    answers |= {"model.name": "llama-1b", "precision.mixed_precision": row.precisions[0] if row.precisions else "bf16"}
    plan = decide(answers, here).plan
    recomputed = plan.model.activation_checkpointing != "none"  # where not even one sample would fit
    assert recomputed or plan.batch.per_device_batch_size <= 2
    careless = plans.with_changes(plan, {"batch.per_device_batch_size": 4, "batch.gradient_accumulation_steps": 1})
    careless = plans.with_changes(careless, {"model.activation_checkpointing": "none", "model.compile": False})
    for each, refused in ((plan, False), (careless, True)):
        known = rules.Facts(plan=each, machine=here, estimate=estimate(each, DECODERS["llama-1b"].parameters))
        found = {finding.rule for finding in rules.check(known, rules=rules.of_plans())}
        assert ("TW325" in found) == refused


def test_the_micro_batch_shows_what_fills_the_gpu() -> None:
    reason = why(decide({"model.name": "llama-1b"}, machine("4xa100-40g")), "batch.per_device_batch_size")
    assert reason.endswith(
        "; each rank needs 6.7 GiB of model state and about 15.1 GiB of activations; GPU memory: 40.0 GiB"
    )
    assert "activations" not in why(decide({}, machine("cpu")), "batch.per_device_batch_size")


@pytest.mark.parametrize(
    ("samples", "real", "reason"),
    [(224, 32, "a tenth of the 224 samples"), (1000, 96, "a tenth of the 1000"), (None, 512, "1048576 tokens")],
)
def test_a_real_batch_is_a_part_of_the_data(samples: int | None, real: int, reason: str) -> None:
    decided = decide({"model.name": "llama-1b"}, machine("8xh100"), data=counted(samples))
    assert decided.plan.batch.real_batch_size == real
    assert reason in why(decided, "batch.real_batch_size")
    assert decide({}, machine("cpu"), data=counted(100)).plan.batch.real_batch_size == 32


@pytest.mark.parametrize(
    ("parameters", "rate", "tokens"),
    [
        (2 * 10**8, 6e-4, 2**19),
        (3 * 10**8, 3e-4, 2**19),
        (10**9, 2.5e-4, 2**19),
        (2 * 10**9, 2e-4, 2**20),
        (3 * 10**9, 1.6e-4, 2**20),
        (5 * 10**9, 1.2e-4, 2**21),
        (9 * 10**9, 1.2e-4, 2**21),
        (2 * 10**10, 1e-4, 2**21),
    ],
)
def test_a_new_model_takes_the_rate_and_the_batch_of_gpt_3(parameters: int, rate: float, tokens: int) -> None:
    """Table 2.1 of https://arxiv.org/abs/2005.14165, its batches rounded to powers of two."""
    answers = {
        "model.name": "org/model",
        "model.from_scratch": True,
        "batch.sequence_length": 2048,
        "batch.per_device_batch_size": 1,
    }
    decided = decide(answers, machine("8xh100"), model=sized(parameters)).plan
    assert (decided.optimizer.learning_rate, decided.batch.real_batch_size) == (rate, tokens // 2048)


@pytest.mark.parametrize(
    ("answers", "length"),
    [
        ({"task": "text_classification", "model.name": "org/model"}, 256),
        ({"task": "causal_lm", "model.name": "org/model"}, 1024),
        ({"task": "causal_lm", "model.name": "org/model", "machine.device": "cpu"}, 256),
        ({"task": "causal_lm", "model.name": "tiny"}, 256),
        ({"task": "sft", "model.name": "llama-1b"}, 2048),
    ],
)
def test_how_long_a_sample_is(answers: dict[str, Any], length: int) -> None:
    assert decide(answers, machine("8xh100")).plan.batch.sequence_length == length


@pytest.mark.parametrize(
    ("updates", "checkpoints", "logs", "warm_up"),
    [(1, 1, 1, 0), (10, 3, 1, 0), (40, 10, 2, 4), (101, 26, 5, 10), (400, 100, 10, 40), (10_000, 500, 10, 1000)],
)
def test_how_often_is_saved_and_logged(updates: int, checkpoints: int, logs: int, warm_up: int) -> None:
    plan = decide({"schedule.n_steps": updates}, None).plan
    assert plan.checkpoint.checkpointing_steps == checkpoints
    assert plan.tracking.logging_steps == logs
    assert plan.schedule.n_warmup_steps == warm_up


def test_only_a_model_that_crowds_the_host_is_built_in_parts() -> None:
    """4 bytes per parameter on each of 4 ranks; half of the memory may go to it."""
    answers = {"model.name": "org/model", "strategy.zero_stage": 3}
    host = 128 * 2**30
    small = replace(machine("4xa100-40g"), memory=Memory(total_bytes=host))
    for share, cut in ((0.45, False), (0.55, True)):
        decided = decide(answers, small, model=sized(int(share * host / 4 / 4))).plan.strategy
        assert (decided.zero3_init, decided.zero3_save_16bit_model) == (cut, True)
    # 13B in 16 bits do not fit in a GPU of 24 GiB, where DeepSpeed moves it before it is sharded.
    roomy = replace(machine("2xrtx4090"), memory=Memory(total_bytes=2**40))
    thirteen = decide(answers, roomy, model=sized(13 * 10**9))
    assert thirteen.plan.strategy.zero3_init
    assert "moved there first" in why(thirteen, "strategy.zero3_init")
    for kind in ("ddp", "deepspeed"):
        other = decide({"strategy.kind": kind}, machine("4xa100-40g"), model=sized(host)).plan.strategy
        assert (other.zero3_init, other.zero3_save_16bit_model) == (False, False)


@pytest.mark.parametrize(
    ("answers", "decay"),
    [
        ({}, 0.1),
        ({"task": "sft"}, 0.0),
        ({"task": "text_classification"}, 0.01),
        ({"task": "custom"}, 0.0),
        ({"task": "image_classification"}, 0.01),
    ],
)
def test_how_much_weights_decay(answers: dict[str, Any], decay: float) -> None:
    assert decide(answers, None).plan.optimizer.weight_decay == decay


def test_reasons_are_those_of_what_was_decided() -> None:
    alone, several = (decide({"machine.num_processes": n}, machine("cpu")) for n in (1, 2))
    assert (alone.plan.strategy.kind, why(alone, "strategy.kind")) == ("single", "one rank")
    assert "share host memory" in why(several, "strategy.kind")
    single = decide({"strategy.kind": "single"}, machine("8xh100")).sources["machine.num_processes"]
    assert (single.kind, str(single.reason)) == ("default", "strategy single uses one rank")
    assert decide({}, None).sources["machine.num_processes"].kind == "default"
    lean = decide({"model.name": "org/model"}, machine("2xrtx4090"), model=sized(2 * 10**10))
    assert lean.plan.strategy.label == "zero3"
    for key in ("strategy.offload_optimizer_device", "strategy.offload_param_device"):
        assert lean.plan.get(key) == "cpu"
        assert "model state" in why(lean, key)


def test_only_answers_that_are_replaced_fall() -> None:
    steps = {"schedule.n_steps": 5, "seed": 1}
    assert without_replaced({}, steps) == steps
    assert without_replaced({"batch.real_batch_size": 8, "engine": "accelerate"}, steps) == steps
    assert without_replaced({"schedule.n_epochs": 2}, steps) == {"seed": 1}


def test_an_answer_from_a_file_says_so() -> None:
    origin = Source(kind="file", reason=say("a.yaml"))
    assert decide({"seed": 7}, None, origins={"seed": origin}).sources["seed"] == origin


def test_epochs_of_known_data_give_the_warm_up() -> None:
    answers = {"schedule.n_epochs": 2, "batch.real_batch_size": 32}
    assert decide(answers, machine("cpu"), data=counted(1601)).plan.schedule.n_warmup_steps == 10  # 2 × 51 updates


def test_the_batch_conflict_shows_its_arithmetic() -> None:
    answers = {"machine.num_processes": 4, "batch.real_batch_size": 100, "batch.per_device_batch_size": 8}
    with pytest.raises(PlanError) as caught:
        decide(answers, machine("4xa100-40g"))
    (problem,) = caught.value.problems
    assert str(problem) == (
        "batch.real_batch_size: 100 is not divisible by 8 × 4 = 32; nearest: 96 (accumulation 3) or "
        "128 (accumulation 4), or micro-batch 5 (accumulation 5)"
    )


def test_a_stage_without_deepspeed_is_a_conflict() -> None:
    with pytest.raises(PlanError, match=r"strategy\.zero_stage: 3 needs strategy\.kind deepspeed, not ddp"):
        decide({"strategy.kind": "ddp", "strategy.zero_stage": 3}, None)


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(NAMES),
    world=st.none() | st.integers(1, 64),
    real=st.none() | st.integers(1, 4096),
    micro=st.none() | st.integers(1, 64),
    accumulation=st.none() | st.integers(1, 64),
    size=st.none() | st.integers(1000, 10**12),
)
def test_any_answers_give_a_plan_or_a_named_conflict(
    name: str, world: int | None, real: int | None, micro: int | None, accumulation: int | None, size: int | None
) -> None:
    keys = (
        "machine.num_processes",
        "batch.real_batch_size",
        "batch.per_device_batch_size",
        "batch.gradient_accumulation_steps",
    )
    answers: dict[str, Any] = {k: x for k, x in zip(keys, (world, real, micro, accumulation), strict=True) if x}
    answers["model.name"] = "some/model"
    problem = ""
    try:
        plan = decide(answers, machine(name), model=sized(size)).plan
    except PlanError as error:
        problem = str(error.problems[0])
    if problem:
        assert real
        assert problem.startswith("batch.")
        return
    b = plan.batch
    assert b.real_batch_size == b.per_device_batch_size * b.gradient_accumulation_steps * plan.machine.num_processes
    assert all(plan.get(key) == value for key, value in answers.items())


def test_earlier_answers_fall_only_when_they_are_illegal() -> None:
    def here(answers: Any) -> Decided:
        return decide(answers, machine("4xa100-40g"))

    firm = {"machine.num_processes": 3}
    earlier = {"batch.real_batch_size": 32, "seed": 7, "optimizer.learning_rate": 1e-3}
    kept, fallen = carry(firm, earlier, here)
    assert kept == {"seed": 7, "optimizer.learning_rate": 1e-3}
    assert [f.key for f in fallen] == ["batch.real_batch_size"]
    assert "32 is not divisible by 3 ranks" in str(fallen[0].problems[0])


def test_a_new_length_takes_back_the_old_one() -> None:
    kept, fallen = carry({"schedule.n_epochs": 2}, {"schedule.n_steps": 50, "seed": 1}, lambda a: decide(a, None))
    assert (kept, fallen) == ({"seed": 1}, ())


@pytest.mark.parametrize(
    ("answers", "engine", "kind", "precision"),
    [
        ({"strategy.kind": "ddp"}, "accelerate", "ddp", "bf16"),
        ({"strategy.kind": "gemini"}, "colossalai", "gemini", "bf16"),
        ({"strategy.kind": "colossal_zero2", "engine": "colossalai"}, "colossalai", "colossal_zero2", "bf16"),
        ({"strategy.kind": "colossal_ddp"}, "colossalai", "colossal_ddp", "no"),
        ({"engine": "colossalai"}, "colossalai", "colossal_zero1", "bf16"),
        ({"engine": "colossalai", "machine.device": "cpu"}, "colossalai", "colossal_ddp", "no"),
    ],
)
def test_the_strategy_decides_the_engine(answers: dict[str, Any], engine: str, kind: str, precision: str) -> None:
    plan = decide(answers, machine("8xh100")).plan
    assert (plan.engine, plan.strategy.kind, plan.precision.mixed_precision) == (engine, kind, precision)


def test_an_engine_that_cannot_do_the_strategy_is_refused() -> None:
    with pytest.raises(PlanError, match=r"engine: accelerate does not support strategy\.kind gemini"):
        decide({"engine": "accelerate", "strategy.kind": "gemini"}, machine("8xh100"))


@pytest.mark.parametrize(("parameters", "micro"), [(1_100_000_000, 4), (6_716_000_000, 1)])
def test_layers_that_are_unknown_give_a_small_micro_batch(parameters: int, micro: int) -> None:
    model = ModelFacts(name="timm/somebody_s_network", kind="hub", parameters=parameters)
    answers = {"task": "image_classification", "model.name": model.name, "data.train": "pictures"}
    assert decide(answers, machine("8xh100"), model=model).plan.batch.per_device_batch_size == micro


@pytest.mark.parametrize("name", ["8xh100", "4xa100-40g", "2xrtx4090"])
def test_a_model_of_unknown_size_is_never_copied_to_each_gpu(name: str) -> None:
    decided = decide({"model.name": "nobody/nothing"}, machine(name))
    assert decided.plan.strategy.label == "zero3"
    assert "size is unknown" in why(decided, "strategy.kind")
    assert decided.plan.model.parameters is None


@pytest.mark.parametrize(
    ("model", "name", "strategy", "offload", "length", "recomputed"),
    [
        ("meta-llama/Llama-2-70b-hf", "8xh100", "zero3", "cpu", 4096, "full"),
        ("meta-llama/Llama-3.1-8B", "8xh100", "zero2", "none", 4096, "none"),
        ("Qwen/Qwen2.5-7B-Instruct", "4xa100-40g", "zero3", "cpu", 4096, "none"),
        ("openai-community/gpt2", "1xt4", "single", "none", 1024, "none"),
        ("TinyLlama/TinyLlama-1.1B", "2xrtx4090", "zero2", "none", 2048, "none"),
        ("google/gemma-2-9b", "8xh100", "fsdp", "none", 4096, "selective"),
    ],
)
def test_layers_and_positions_decide_what_fits(
    model: str, name: str, strategy: str, offload: str, length: int, recomputed: str
) -> None:
    plan = decide({"model.name": model}, machine(name), model=known_as(model)).plan
    assert (plan.strategy.label, plan.strategy.offload_optimizer_device) == (strategy, offload)
    assert (plan.batch.sequence_length, plan.model.activation_checkpointing) == (length, recomputed)
    needed = estimate(plan, known_as(model).parameters or 0, known_as(model).transformer)
    gpu = machine(name).gpus[0].memory_bytes
    assert needed.peak_bytes_per_rank < 0.9 * gpu


def test_the_size_says_where_it_was_found() -> None:
    answers = {"model.name": "meta-llama/Llama-3.1-8B"}
    found = decide(answers, machine("8xh100"), model=known_as("meta-llama/Llama-3.1-8B"))
    assert found.plan.model.parameters == 8_030_261_248
    assert (found.sources["model.parameters"].kind, why(found, "model.parameters")) == ("found", "a well-known model")
    told = decide({**answers, "model.parameters": 10**9}, machine("8xh100"), model=sized(None))
    assert (told.plan.model.parameters, told.sources["model.parameters"].kind) == (10**9, "yours")
    assert told.plan.strategy.label == "zero2"
    assert decide({}, machine("8xh100")).plan.model.parameters is None  # a preset's shape says it


def test_a_sample_is_shortened_where_nothing_else_fits() -> None:
    """A layer of 128 experts, however its weights come to the GPU."""
    largest = "Qwen/Qwen3-235B-A22B"
    decided = decide({"model.name": largest}, machine("1xt4"), model=known_as(largest))
    assert decided.plan.batch.sequence_length < 4096
    assert "4096 tokens does not fit" in why(decided, "batch.sequence_length")


@pytest.mark.parametrize(
    ("model", "each", "reason"),
    [
        ("Qwen/Qwen2.5-32B", True, "whole gradients would need"),
        ("Qwen/Qwen2.5-1.5B", False, "fits in 90%"),
    ],
)
def test_fsdp_keeps_whole_gradients_only_where_they_fit(model: str, each: bool, reason: str) -> None:
    answers = {"model.name": model, "strategy.kind": "fsdp"}
    decided = decide(answers, machine("8xh100"), model=known_as(model))
    assert decided.plan.strategy.sync_each_batch is each
    assert reason in why(decided, "strategy.sync_each_batch")
    once = {**answers, "batch.gradient_accumulation_steps": 1}
    assert not decide(once, machine("8xh100"), model=known_as(model)).plan.strategy.sync_each_batch


def test_a_new_model_takes_back_the_size_of_the_old_one() -> None:
    earlier = {"model.name": "org/a", "model.parameters": 10**9, "seed": 1}
    assert without_replaced({"model.name": "org/b"}, earlier) == {"seed": 1}
    assert without_replaced({"model.name": "org/b"}, {"model.parameters": 5}) == {"model.parameters": 5}
    assert without_replaced({"seed": 2}, earlier) == {"model.name": "org/a", "model.parameters": 10**9}


# docs/decisions/loop.md: Trainings of more than ten minutes on GPUs are compiled
def test_a_long_training_on_gpus_is_compiled_and_says_what_that_costs() -> None:
    long = {"model.name": "llama-1b", "schedule.n_steps": 10_000}
    decided = decide(long, machine("8xh100"))
    assert decided.plan.model.compile
    found = re.fullmatch(
        r"the forecast for H100 is ([\d:]+) instead of ([\d:]+); compilation takes a minute or more at each start",
        why(decided, "model.compile"),
    )
    assert found
    compiled, plain = (sum(60**i * int(part) for i, part in enumerate(reversed(t.split(":")))) for t in found.groups())
    assert 600 < compiled < plain
    decided = decide({**long, "schedule.n_steps": 5}, machine("8xh100"))
    assert not decided.plan.model.compile
    assert why(decided, "model.compile").startswith("the training takes about ")
    assert decide({**long, "model.compile": False}, machine("8xh100")).plan.model.compile is False


def test_nothing_is_compiled_that_is_not_known_to_gain() -> None:
    long = {"model.name": "llama-1b", "schedule.n_steps": 10_000}
    eight = machine("8xh100")
    no_compiler = replace(eight, probed=True, toolchain=replace(eight.toolchain, cxx=None))
    old = replace(eight, gpus=tuple(replace(gpu, compute_capability=(6, 1)) for gpu in eight.gpus))
    other = replace(eight, gpus=tuple(replace(gpu, name="Graphics Device") for gpu in eight.gpus))
    zero3 = {"strategy.kind": "deepspeed", "strategy.zero_stage": 3}
    cases: list[tuple[dict[str, Any], Machine]] = [
        (long, no_compiler),
        (long, old),
        (long, other),
        (long, machine("cpu")),
        ({**long, **zero3}, eight),
        ({**long, "engine": "colossalai"}, eight),
        ({**long, "task": "text_classification"}, eight),
        ({**long, "schedule.n_steps": None, "schedule.n_epochs": 3}, eight),
    ]
    for answers, where in cases:
        decided = decide(answers, where)
        assert not decided.plan.model.compile, answers
        assert why(decided, "model.compile") == "compilation takes a minute or more at each start"
    adapted = {**long, "model.name": "some/model", "task": "sft", "model.adapter": "qlora"}
    assert not decide(adapted, eight, model=known_as("meta-llama/Llama-3.1-8B")).plan.model.compile
    adapted["model.adapter"] = "lora"
    assert decide(adapted, eight, model=known_as("meta-llama/Llama-3.1-8B")).plan.model.compile


def test_compiled_layers_keep_less_than_eager_ones_and_more_than_their_products() -> None:
    plan = decide({"model.name": "llama-1b", "schedule.n_steps": 10_000}, machine("8xh100")).plan
    assert plan.model.compile
    assert plan.model.activation_checkpointing == "none"
    plain, selective, full = (
        plans.with_changes(plan, {"model.compile": False, "model.activation_checkpointing": how})
        for how in ("none", "selective", "full")
    )
    kept = [
        estimate(each, DECODERS["llama-1b"].parameters).activation_bytes_per_rank
        for each in (full, selective, plan, plain)
    ]
    assert kept[0] < kept[1] < kept[2] < kept[3]
    larger = plans.with_changes(plan, {"batch.per_device_batch_size": 512, "batch.real_batch_size": 4096})
    known = rules.Facts(
        plan=larger, machine=machine("8xh100"), estimate=estimate(larger, DECODERS["llama-1b"].parameters)
    )
    assert "TW325" in {finding.rule for finding in rules.check(known, rules=rules.of_plans())}


@pytest.mark.parametrize(
    ("model", "name", "answers", "chunk", "reason"),
    [
        ("openai-community/gpt2", "8xh100", {}, 8192, "the peak is then 11.2 GiB of 79.6 GiB"),
        ("openai-community/gpt2", "1xt4", {}, 4096, "the peak is then 8.9 GiB of 15.0 GiB"),
        (
            "openai-community/gpt2",
            "1xt4",
            {"batch.sequence_length": 64, "batch.per_device_batch_size": 8},
            1024,
            "hardly faster",
        ),
        ("TinyLlama/TinyLlama-1.1B", "2xrtx4090", {}, 1024, "would need more memory"),
        ("google/gemma-2-9b", "1xt4", {"model.adapter": "qlora"}, 1024, "would need more memory"),
        ("openai-community/gpt2", "cpu", {}, 1024, "keeps the logits small"),
    ],
)
def test_memory_decides_the_chunk(model: str, name: str, answers: dict[str, Any], chunk: int, reason: str) -> None:
    decided = decide({"model.name": model, **answers}, machine(name), model=known_as(model))
    assert decided.plan.model.loss_chunk == chunk
    assert reason in why(decided, "model.loss_chunk")


def test_a_smaller_chunk_lets_a_large_vocabulary_fit() -> None:
    t4 = machine("1xt4")
    here = replace(t4, gpus=tuple(replace(gpu, memory_bytes=8 * 2**30) for gpu in t4.gpus))
    answers = {"model.name": "google/gemma-7b", "model.adapter": "qlora", "batch.sequence_length": 2048}
    answers["model.activation_checkpointing"] = "full"
    decided = decide(answers, here, model=known_as("google/gemma-7b"))
    assert decided.plan.model.loss_chunk == 512
    reason = "8.3 GiB per rank with chunks of 1024 tokens does not fit in 8.0 GiB; this needs 6.8 GiB"
    assert why(decided, "model.loss_chunk") == reason
    given = decide({**answers, "model.loss_chunk": 1024}, here, model=known_as("google/gemma-7b"))
    assert given.plan.model.loss_chunk == 1024


def test_liger_kernel_is_used_where_it_is_installed_and_nothing_is_compiled() -> None:
    eight = machine("8xh100")
    interpreter = eight.interpreter
    assert interpreter is not None
    installed = replace(eight, interpreter=replace(interpreter, packages={"liger-kernel": "0.8.5"}))
    zero3 = {"model.name": "llama-1b", "strategy.kind": "deepspeed", "strategy.zero_stage": 3}
    decided = decide(zero3, installed)
    assert decided.plan.model.kernels == "liger"
    assert why(decided, "model.kernels") == "liger-kernel 0.8.5 is installed, and nothing is compiled"
    old = replace(installed, gpus=tuple(replace(gpu, compute_capability=(7, 0)) for gpu in installed.gpus))
    bare = replace(installed, probed=True, toolchain=replace(installed.toolchain, cxx=None))
    cases: list[tuple[dict[str, Any], Machine, str]] = [
        (zero3, eight, "needs its package"),
        (zero3, old, "needs its package"),
        (zero3, bare, "a C++ compiler"),
        ({**zero3, "task": "text_classification"}, installed, "a language model"),
        ({**zero3, "model.name": "gpt2-124m"}, installed, "not been tested with this kind of model"),
        ({"model.name": "llama-1b", "model.compile": True}, installed, "the compiler fuses the layers"),
    ]
    for answers, where, reason in cases:
        decided = decide(answers, where)
        assert decided.plan.model.kernels == "none", answers
        assert reason in why(decided, "model.kernels"), answers


def test_inputs_go_to_host_memory_where_they_do_not_fit() -> None:
    four, facts = machine("4xa100-40g"), known_as("meta-llama/Llama-3.1-8B")
    answers = {"model.name": facts.name, "batch.per_device_batch_size": 1}
    chosen = [
        decide({**answers, "batch.sequence_length": length}, here, model=facts)
        for length, here in (
            (65_536, four),
            (131_072, four),
            (131_072, replace(four, memory=replace(four.memory, total_bytes=200 * 2**30))),
            (262_144, four),  # the layer that is computed does not fit either
        )
    ]
    assert [one.plan.model.activation_checkpointing for one in chosen] == ["full", "offload", "full", "full"]
    assert not chosen[1].plan.model.compile
    # 32 layers on 4 ranks, in 16 bits, 4096 wide
    assert "128 GiB of them is kept in host memory" in why(chosen[1], "model.activation_checkpointing")
    assert 4 * 32 * 131_072 * 4096 * 2 == 128 * 2**30


def test_unknown_host_memory_makes_no_micro_batch_smaller() -> None:
    facts, known = known_as("meta-llama/Llama-3.1-8B"), machine("8xh100")
    unknown = replace(known, memory=replace(known.memory, total_bytes=0))
    answers = {"model.name": facts.name, "model.activation_checkpointing": "offload", "batch.sequence_length": 2048}
    found = [decide(answers, here, model=facts).plan.batch.per_device_batch_size for here in (known, unknown)]
    assert found[0] == found[1] > 1


def test_offloaded_inputs_leave_host_memory_to_offloaded_state() -> None:
    facts, here = known_as("meta-llama/Llama-3.1-70B"), machine("8xh100")
    plan = decide({"model.name": facts.name, "batch.sequence_length": 65_536}, here, model=facts).plan
    assert plan.model.activation_checkpointing == "offload"
    assert plan.strategy.offload_optimizer_device == "cpu"
    found = estimate(plan, facts.parameters, facts.transformer)
    assert found.host_bytes_per_machine <= here.memory.total_bytes
    # 640 GiB of inputs are less than half of this memory, but the state beside them takes 1314 GiB.
    less = replace(here, memory=replace(here.memory, total_bytes=1700 * 2**30))
    plan = decide({"model.name": facts.name, "batch.sequence_length": 65_536}, less, model=facts).plan
    assert plan.model.activation_checkpointing == "full"


def test_arrays_are_counted_in_their_own_size() -> None:
    answers = {"task": "image_classification", "model.name": "timm/resnet50", "data.train": "a.npz"}
    sizes = (64, 512)
    small, large = (
        decide(
            {**answers, "batch.real_batch_size": 256},
            machine("1xt4"),
            model=sized(25_560_000),
            data=DataFacts(name="a.npz", kind="file", samples=10**4, picture_size=size),
        )
        for size in sizes
    )
    assert (small.plan.data.image_size, large.plan.data.image_size) == sizes
    assert why(small, "data.image_size") == "the size of the arrays, which are not resized"
    assert small.plan.batch.per_device_batch_size > large.plan.batch.per_device_batch_size


def test_a_bar_of_memory_is_as_long_as_the_memory() -> None:
    parts = {"state": 10, "buffers": 5, "activations": 1}
    need = Needs(state=10, moments={"loss": {"state": 10}, "backward": parts})
    assert memory_bar.bar(need, 20) == "██████████▓▓▓▓▓▒····"
    assert memory_bar.bar(need, 8) == "█" * 20


@pytest.mark.parametrize("name", ["2xrtx4090", "8xh100"])
def test_rows_that_are_not_packed_keep_scores_where_there_is_no_kernel_for_them(name: str) -> None:
    """Little data is not packed, so that gpt-oss attends without flex_attention: what is decided must fit then, too."""
    model = known_as("openai/gpt-oss-20b")
    data = DataFacts(name="talks.jsonl", kind="file", amount=Amount(documents=54, different=54, tokens=54 * 40))
    answers = {"task": "sft", "model.name": model.name, "data.train": "talks.jsonl"}
    plan = decide(answers, machine(name), model=model, data=data).plan
    assert not plan.data.packing
    found = estimate(plan, model.parameters or 0, model.transformer)
    facts = rules.Facts(plan=plan, machine=machine(name), estimate=found)
    errors = {one.rule for one in rules.check(facts, rules=rules.of_plans()) if one.level.name == "ERROR"}
    assert not errors & {"TW325", "TW329"}
