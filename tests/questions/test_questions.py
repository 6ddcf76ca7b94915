"""The table of questions: complete, legal, and readable both ways."""

from typing import Any, get_args

import pytest

from trainwiz import plan as plans
from trainwiz.message import Message
from trainwiz.questions import ADVANCED, BASIC, Question, forms, question_for

KEYS = [key for key in plans.fields() if key not in ("version", "deepspeed", "ignore")]
TABLE = (*BASIC, *ADVANCED)


def asked(key: str) -> Question:
    return next(q for q in TABLE if q.key == key)


def test_at_most_eight_questions_stand_before_the_gate() -> None:
    assert 1 <= len(BASIC) <= 8


def test_every_key_of_the_plan_has_one_entry() -> None:
    keys = [q.key for q in TABLE]
    assert sorted(keys) == sorted(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_can_be_changed_by_a_question(key: str) -> None:
    assert key in question_for(key).sets


def test_keys_that_are_no_questions() -> None:
    with pytest.raises(KeyError):
        question_for("version")


@pytest.mark.parametrize("question", TABLE, ids=lambda q: q.key)
def test_help_says_more_than_the_prompt(question: Question) -> None:
    assert len(str(question.help)) > 60
    assert str(question.prompt)


@pytest.mark.parametrize("question", [q for q in TABLE if q.choices], ids=lambda q: q.key)
def test_choices_are_legal_and_complete(question: Question) -> None:
    values = {str(choice.value) for choice in question.choices}
    if question.reader:
        assert values == {name for name, _ in forms.strategies_offered()}
        return
    for value in values:
        plans.parse_value(question.key, value)
    legal = get_args(plans.fields()[question.key].annotation)
    if legal and all(isinstance(x, str) for x in legal):
        assert values == set(legal)


@pytest.mark.parametrize("name", [name for name, _ in forms.strategies_offered()])
def test_a_strategy_reads_back_as_it_was_typed(name: str) -> None:
    texts = forms.read_strategy(name, {})
    assert isinstance(texts, dict)
    values = {key: plans.parse_value(key, text) for key, text in texts.items()}
    assert forms.show_strategy(values) == name


@pytest.mark.parametrize("typed", ["zero4", "ddp+offload", "zero2+nvme", "zero1+offload", "", "fsdp2"])
def test_a_wrong_strategy_names_the_legal_ones(typed: str) -> None:
    problem = forms.read_strategy(typed, {})
    assert isinstance(problem, Message)
    assert "zero3+offload" in str(problem)


CUDA = {"machine.device": "cuda", "machine.num_processes": 4}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("8", {"machine.device": "cuda", "machine.num_processes": "8"}),
        ("cpu", {"machine.device": "cpu"}),
        ("cpu 2", {"machine.device": "cpu", "machine.num_processes": "2"}),
        ("2 cpu", {"machine.device": "cpu", "machine.num_processes": "2"}),
        ("2x8", {"machine.device": "cuda", "machine.num_machines": "2", "machine.num_processes": "16"}),
        ("cpu 3×2", {"machine.device": "cpu", "machine.num_machines": "3", "machine.num_processes": "6"}),
    ],
)
def test_machine_forms(typed: str, expected: dict[str, str]) -> None:
    assert forms.read_machine(typed, CUDA) == expected


WRONG_MACHINES = ["four", "4 5", "cpu cuda", "-1", "2.5", "cpu;2", "2x", "x2", "2x2x2", f"{'9' * 5000}x2"]


@pytest.mark.parametrize("typed", WRONG_MACHINES)
def test_a_wrong_machine_shows_the_form(typed: str) -> None:
    assert "for example, type 2 or cpu 2" in str(forms.read_machine(typed, CUDA))
    assert "for example, type 2x8xH100" in str(forms.read_machine(typed, {**CUDA, "cluster.kind": "slurm"}))


def test_machines_of_a_job_are_shown_as_they_are_typed() -> None:
    values = {"machine.device": "cuda", "machine.num_processes": 16, "machine.num_machines": 2}
    assert forms.show_machine(values) == "16"
    shown = forms.show_machine({**values, "cluster.kind": "slurm"})
    assert shown == "cuda 2x8"
    assert forms.read_machine(shown, CUDA) == {key: str(value) for key, value in values.items()}


@pytest.mark.parametrize(
    ("typed", "unit", "expected"),
    [
        ("500", "steps", ("steps", "500", "null")),
        ("500 steps", "epochs", ("steps", "500", "null")),
        ("3", "epochs", ("epochs", "null", "3")),
        ("3epochs", "steps", ("epochs", "null", "3")),
        ("1 epoch", "steps", ("epochs", "null", "1")),
        ("abc", "steps", ("steps", "abc", "null")),
    ],
)
def test_length_forms(typed: str, unit: str, expected: tuple[str, str, str]) -> None:
    texts = forms.read_length(typed, {"schedule.train_strategy": unit})
    keys = ("schedule.train_strategy", "schedule.n_steps", "schedule.n_epochs")
    assert isinstance(texts, dict)
    assert tuple(texts[key] for key in keys) == expected


@pytest.mark.parametrize(
    ("typed", "name", "size"),
    [
        ("org/model", "org/model", None),
        ("org/model 13B", "org/model", 13 * 10**9),
        ("./a folder", "./a folder", None),
        ("./a folder 0.5b", "./a folder", 5 * 10**8),
        ("org/model-7B", "org/model-7B", None),
    ],
)
def test_a_model_may_be_named_with_its_size(typed: str, name: str, size: int | None) -> None:
    texts = forms.read_model(typed, {})
    assert isinstance(texts, dict)
    assert texts["model.name"] == name
    found = texts.get("model.parameters")
    assert (plans.parse_value("model.parameters", found) if found else None) == size


@pytest.mark.parametrize(
    ("typed", "size"),
    [("7", 7 * 10**9), ("0.5", 5 * 10**8), ("350M", 35 * 10**7), ("13b", 13 * 10**9), ("6738415616", 6_738_415_616)],
)
def test_a_bare_size_is_in_billions(typed: str, size: int) -> None:
    texts = forms.read_parameters(typed, {})
    assert isinstance(texts, dict)
    assert plans.parse_value("model.parameters", texts["model.parameters"]) == size


def test_batch_forms() -> None:
    assert forms.read_batch("64", {}) == {"batch.real_batch_size": "64"}
    both: Any = forms.read_batch(" 64 / 8 ", {})
    assert both == {"batch.real_batch_size": "64", "batch.per_device_batch_size": "8"}


@pytest.mark.parametrize(
    ("key", "asked", "not_asked"),
    [
        ("machine.main_process_ip", {"machine.num_machines": 2}, {"machine.num_machines": 1}),
        ("machine.main_process_ip", {"machine.num_machines": "3"}, {}),
        ("supervision.max_restarts", {}, {"machine.num_machines": 2}),
        ("strategy.offload_optimizer_device", {"strategy.kind": "deepspeed"}, {"strategy.kind": "fsdp"}),
        (
            "strategy.offload_param_device",
            {"strategy.kind": "deepspeed", "strategy.zero_stage": 3},
            {"strategy.kind": "deepspeed", "strategy.zero_stage": 2},
        ),
        ("strategy.zero3_init", {"strategy.kind": "deepspeed", "strategy.zero_stage": 3}, {"strategy.zero_stage": 3}),
        ("strategy.nvme_path", {"strategy.offload_param_device": "nvme"}, {"strategy.offload_param_device": "cpu"}),
        ("model.adapter", {"task": "sft"}, {"task": "image_classification"}),
        ("model.lora_rank", {"task": "sft", "model.adapter": "lora"}, {"task": "sft"}),
        ("model.lora_rank", {"task": "sft", "model.adapter": "qlora"}, {"task": "custom", "model.adapter": "lora"}),
        ("model.compile", {}, {"engine": "colossalai"}),
        ("model.name", {"task": "causal_lm"}, {"task": "custom"}),
        ("data.eval", {"task": "causal_lm"}, {"task": "custom"}),
    ],
)
def test_a_question_is_asked_only_where_it_makes_a_difference(
    key: str, asked: dict[str, object], not_asked: dict[str, object]
) -> None:
    question = question_for(key)
    assert question.when(asked)
    assert not question.when(not_asked)


@pytest.mark.parametrize("key", ["engine", "machine.device", "strategy.zero_stage", "batch.per_device_batch_size"])
def test_what_a_basic_question_settles_is_not_asked_again(key: str) -> None:
    (question,) = (question for question in ADVANCED if question.key == key)
    assert not question.when({"task": "causal_lm", "strategy.kind": "deepspeed"})
