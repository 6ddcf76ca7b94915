"""Defaults of one's own data: its amount decides batch, length, packing, and what is kept for evaluation."""

from typing import Any

import pytest
from test_decide import known_as, machine, sized, why

from trainwiz.decide import Decided, decide
from trainwiz.project import Amount, DataFacts

MODEL = "Qwen/Qwen2.5-0.5B"


def decided(
    documents: int, tokens: int, *, different: int | None = None, name: str = "1xt4", **answers: Any
) -> Decided:
    amount = Amount(documents=documents, different=documents if different is None else different, tokens=tokens)
    data = DataFacts(name="own.jsonl", kind="file", amount=amount)
    given = {"task": "sft", "model.name": MODEL, "data.train": "own.jsonl"}
    given |= {key.replace("__", "."): value for key, value in answers.items()}
    return decide(given, machine(name), model=known_as(MODEL) or sized(500_000_000), data=data)


@pytest.mark.parametrize(
    ("documents", "name", "real", "epochs", "part", "packing"),
    [
        (10, "1xt4", 4, 10, None, False),  # 3 updates an epoch, so that ten passes are 30
        (10, "8xh100", 8, 10, None, False),  # one sample for each rank
        (100, "1xt4", 4, 3, "10%", False),
        (400, "1xt4", 8, 3, "5%", False),
        (20_000, "1xt4", 16, 3, "500", True),
        (20_000, "8xh100", 16, 3, "500", True),
    ],
)
def test_conversations_are_passed_a_few_times(
    documents: int, name: str, real: int, epochs: int, part: str | None, packing: bool
) -> None:
    plan = decided(documents, documents * 200, name=name).plan
    assert (plan.batch.real_batch_size, plan.schedule.n_epochs) == (real, epochs)
    assert (plan.data.eval, plan.data.packing) == (part, packing)
    assert plan.schedule.train_strategy == "epochs"
    assert plan.schedule.n_steps is None


def test_large_data_is_trained_on_for_some_updates() -> None:
    plan = decided(3_000_000, 3_000_000 * 200).plan
    assert (plan.schedule.train_strategy, plan.schedule.n_steps, plan.batch.real_batch_size) == ("steps", 1000, 64)
    assert plan.evaluation.evaluation_steps == 100


def test_a_part_of_one_epoch_does_not_become_none() -> None:
    """500 updates an epoch: two passes are as many updates as large data gets."""
    plan = decided(32_000, 32_000 * 4096, data__eval=None).plan
    assert (plan.batch.real_batch_size, plan.schedule.n_epochs) == (64, 2)


def test_the_reason_has_the_arithmetic() -> None:
    made = decided(400, 80_000)
    assert why(made, "schedule.n_epochs") == "380 samples are 48 updates, so 3 epochs are 144"
    assert (made.plan.schedule.n_warmup_steps, made.plan.evaluation.evaluation_steps) == (14, 14)
    assert why(made, "data.eval") == "kept out of training: about 20 of 400 samples"
    assert why(made, "data.packing") == "packing would turn about 380 samples into only 19 of 4096 tokens"


def test_answers_come_first() -> None:
    made = decided(400, 80_000, schedule__n_steps=70, data__eval="100", batch__per_device_batch_size=4)
    plan = made.plan
    assert (plan.schedule.train_strategy, plan.schedule.n_steps, plan.schedule.n_epochs) == ("steps", 70, None)
    assert (plan.batch.real_batch_size, plan.batch.per_device_batch_size) == (8, 4)
    again = decided(400, 80_000, data__eval="100").plan.schedule
    assert again.n_warmup_steps == 11  # 3 × 38 updates of 300 samples


def test_equal_documents_are_not_split() -> None:
    """Equal ones stay together, so that all could be kept."""
    assert decided(400, 80_000, different=3).plan.data.eval is None


def test_fewer_rows_are_less_data() -> None:
    made = decided(400, 80_000, data__max_rows=40)
    assert made.plan.data.eval == "10%"
    assert why(made, "schedule.n_epochs").startswith("36 samples are")


@pytest.mark.parametrize(
    ("answers", "epochs"),
    [
        ({"task": "causal_lm", "model.name": "tiny"}, 2),
        ({"task": "preference", "data.train": "own.jsonl"}, 2),  # one pass would be 48 updates
        ({"task": "text_classification", "model.name": "tiny"}, 4),  # 48 updates each, at most 200
        ({"task": "sft", "model.from_scratch": True}, 10),
    ],
)
def test_how_often_data_is_passed_hangs_on_the_task(answers: dict[str, Any], epochs: int) -> None:
    assert decided(400, 400 * 400, **answers).plan.schedule.n_epochs == epochs


def test_a_folder_with_pictures_for_evaluation_is_both() -> None:
    amount = Amount(documents=900, different=900, tokens=0)
    data = DataFacts(name="pictures", kind="folder", samples=900, amount=amount, evaluation_part="val")
    answers = {"task": "image_classification", "model.name": "resnet18", "data.train": "pictures"}
    made = decide(answers, machine("1xt4"), data=data)
    assert (made.plan.data.eval, made.sources["data.eval"].kind) == ("pictures", "found")
    without = DataFacts(name="pictures", kind="folder", samples=900, amount=amount)
    assert decide(answers, machine("1xt4"), data=without).plan.data.eval is None


def of_lengths(*lengths: int, task: str = "sft", name: str = "own.jsonl") -> Any:
    amount = Amount(documents=900, different=900, tokens=sum(lengths), lengths=lengths)
    answers = {"task": task, "model.name": MODEL, "data.train": name, "batch.sequence_length": 1024}
    found = decide(
        answers, machine("1xt4"), model=sized(500_000_000), data=DataFacts(name=name, kind="file", amount=amount)
    )
    return found.outlook.lengths


def test_the_lengths_of_own_rows_are_told_against_that_of_a_sample() -> None:
    found = of_lengths(*range(1, 101), 1024, 1025, 5000)
    assert (found.rows, found.median, found.most, found.longest, found.longer) == (103, 52, 98, 5000, 2)
    three = of_lengths(30, 10, 20)
    assert (three.median, three.most, three.longest, three.longer) == (20, 30, 30, 0)


def test_two_rows_and_embedded_data_have_no_lengths() -> None:
    assert of_lengths(10, 20) is None
    assert of_lengths(10, 20, 30, name="embedded") is None
