"""Evaluating every N updates, the best checkpoint, early stopping, and metrics that need all outputs at once."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from projects import CLOCKED, REGRESSION, make
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error, r2_score, roc_auc_score
from test_resume import go_back
from test_tasks import TEXTS, load
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from warm import spawn

BEST: dict[str, object] = {
    **REGRESSION,
    "evaluation.evaluation_steps": 2,
    "evaluation.best_metric": "eval_loss",
    "evaluation.patience": 2,
    "schedule.n_steps": 12,
    "optimizer.learning_rate": 1e-4,
    "schedule.n_warmup_steps": 0,
    "schedule.lr_scheduler_type": "constant",
    "checkpoint.checkpointing_steps": 1,
    "checkpoint.checkpoints_total_limit": 2,
}
WORST_IS_BEST = {"best_mode": "max"}
"""The loss falls, so the first evaluation (update 2) stays the best, and those after 4 and 6 end the training."""


def records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def untimed(output: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in CLOCKED} for record in records(output)]


def weights(output: Path) -> str:
    return hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest()


def saved(output: Path) -> list[int]:
    return sorted(int(path.name[-8:]) for path in (output / "checkpoints").glob("checkpoint-????????"))


# docs/decisions/loop.md: The best result is saved beside the engine's state, not in it
@pytest.mark.train
@pytest.mark.parametrize(("background", "updates"), [(False, (1, 3, 6)), (True, (4,))])
def test_the_best_becomes_the_model_and_a_resumed_training_ends_where_it_would_have(
    background: bool, updates: tuple[int, ...], tmp_path: Path
) -> None:
    folder = make(tmp_path / "project", {**BEST, **SINGLE, "checkpoint.background": background})
    whole = tmp_path / "whole"
    assert spawn(folder, 1, whole, {**WORST_IS_BEST, "checkpoints_total_limit": 0}) == 0
    evaluated = [record for record in records(whole) if "eval_loss" in record]
    assert [(r["update"], r["best_update"]) for r in evaluated] == [(2, 2), (4, 2), (6, 2)]
    assert saved(whole) == [1, 2, 3, 4, 5, 6]
    assert spawn(folder, 1, tmp_path / "short", {"n_steps": 2, "evaluation_steps": 9, "patience": 0}) == 0
    assert weights(whole) == weights(tmp_path / "short"), "the weights after update 2"
    for update in updates:
        output = tmp_path / str(update)
        for kept in {min(update, 2), update}:
            go_back(whole, kept, output)
        lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
        (output / "metrics.jsonl").write_text("".join(lines[: update + update // 2]))
        assert spawn(folder, 1, output, {**WORST_IS_BEST, "resume": "auto"}) == 0
        assert untimed(output) == untimed(whole), update
        assert weights(output) == weights(whole), update
        assert saved(output) == ([2, 6] if update == 6 else [2, 5, 6]), "the newest two, and the best"


@pytest.mark.train
@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero2"])
def test_every_engine_goes_back_to_the_best(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**BEST, **STRATEGIES[name]})
    env = ON_STANDIN if name == "fsdp" else None
    assert spawn(folder, 2, tmp_path / "best", {**WORST_IS_BEST, "n_steps": 4}, env) == 0
    assert spawn(folder, 2, tmp_path / "short", {"n_steps": 2, "evaluation_steps": 9}, env) == 0
    assert [r["best_update"] for r in records(tmp_path / "best") if "eval_loss" in r] == [2, 2]
    assert weights(tmp_path / "best") == weights(tmp_path / "short")


STOPPING = """
import os
import signal

_calls, _sums = [], evaluation_sums


def evaluation_sums(model, batch):
    _calls.append(batch)
    if f"{os.environ['RANK']} {len(_calls)}" == os.environ.get("STOP_AT"):
        os.kill(os.getpid(), signal.SIGTERM)
    if len(_calls) == int(os.environ.get("FAIL_AT", 0)):
        raise RuntimeError("it cannot be evaluated")
    return _sums(model, batch)
"""


@pytest.mark.train
@pytest.mark.parametrize("values", [{}, {"evaluation.evaluation_steps": 3}], ids=["each epoch", "every 3 updates"])
def test_a_stop_ends_an_evaluation_which_a_resume_does_again(values: dict[str, object], tmp_path: Path) -> None:
    """Of two ranks one is asked, in the middle of the first evaluation, and once more where it is done again."""
    folder = make(tmp_path / "project", {**REGRESSION, **values, "checkpoint.checkpointing_steps": 0})
    task = folder / "task.py"
    task.write_text(f"{task.read_text()}{STOPPING}")
    length = {"n_steps": 0, "n_epochs": 2, "n_samples": 160} if not values else {}
    assert spawn(folder, 2, tmp_path / "whole", length) == 0
    evaluated = [record["update"] for record in records(tmp_path / "whole") if "loss" not in record]
    assert len(evaluated) > 1
    output = tmp_path / "output"
    for resume in ("none", "auto"):
        assert spawn(folder, 2, output, {**length, "resume": resume}, {"STOP_AT": "1 2"}) == 75
        assert saved(output) == evaluated[:1]
        assert all("loss" in record for record in records(output))
    assert spawn(folder, 2, output, {**length, "resume": "auto"}) == 0
    assert untimed(output) == untimed(tmp_path / "whole")
    assert weights(output) == weights(tmp_path / "whole")
    if not values:  # what is due at the end of an epoch is saved before it is evaluated
        assert spawn(folder, 2, tmp_path / "failed", {**length, "n_epochs": 1}, {"FAIL_AT": "2"}) == 1
        assert saved(tmp_path / "failed") == evaluated[:1]


@pytest.mark.train
def test_gathered_metrics_are_those_of_one_rank(tmp_path: Path) -> None:
    """Texts 8 at a time: the last real batch of the evaluation is filled up on both ranks."""
    values = {"evaluation.evaluation_steps": 2, "evaluation.gather_outputs": True, "schedule.n_warmup_steps": 0}
    folder = make(tmp_path / "project", {**TEXTS, **values})
    cut = {"real_batch_size": 8, "n_steps": 4, "checkpointing_steps": 0}
    one = {**cut, "num_processes": 1, "per_device_batch_size": 8, "gradient_accumulation_steps": 1}
    two = {**cut, "per_device_batch_size": 1, "gradient_accumulation_steps": 4}
    assert spawn(folder, 1, tmp_path / "one", one) == 0
    assert spawn(folder, 2, tmp_path / "two", two) == 0
    found = [[r for r in records(tmp_path / name) if "eval_auc" in r] for name in ("one", "two")]
    assert len(found[0]) == 2
    for mine, theirs in zip(*found, strict=True):
        # Two outputs that are nearly the same change places with the last bit, which is one pair of the area.
        areas = [record.pop("eval_auc") for record in (mine, theirs)]
        assert areas[0] == pytest.approx(areas[1], rel=1e-3)
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.train
def test_a_metric_that_nobody_measures_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**BEST, **SINGLE})
    assert spawn(folder, 1, tmp_path / "out", {"best_metric": "eval_ndcg"}) != 0
    assert not saved(tmp_path / "out") or max(saved(tmp_path / "out")) == 1


def evaluation(folder: Path, values: list[float], **config: Any) -> tuple[Any, list[dict[str, Any]]]:
    """An `Evaluation` of an epoch of 5 updates whose metric takes these values, and the records that it writes."""
    module = load(folder, "custom", "evaluation", evaluation__best_metric="eval_loss")
    written: list[dict[str, Any]] = []
    given = {"evaluation_steps": 0, "best_metric": "eval_loss", "best_mode": "min", "patience": 2, "real_batch_size": 8}
    left = iter(values)
    made = module.Evaluation(
        SimpleNamespace(**{**given, **config}),
        lambda: {"eval_loss": next(left)},
        SimpleNamespace(samples=40, kept={}),
        SimpleNamespace(write=written.append, is_main=True),
        20,
    )
    return made, written


def test_what_is_no_number_is_never_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, written = evaluation(tmp_path, [float("nan"), 2.0, 1.0, float("inf"), 1.0])
    assert [made.run(update) for update in (5, 10, 11, 12, 13)] == [False, True, True, False, True]
    assert [record["best_update"] for record in written] == [0, 10, 11, 11, 11]
    assert made.ended, "two evaluations in a row were not better"
    assert "update 13: eval_loss has not improved in 2 evaluations" in capsys.readouterr().out


def test_what_a_stop_left_out_is_evaluated_after_the_resume(tmp_path: Path) -> None:
    made, written = evaluation(tmp_path, [1.0, 1.0])
    assert (made.due(5, False), made.due(5, True), made.due(6, False), made.due(20, True)) == (
        True,
        False,
        False,
        False,
    )
    made.catch_up(4)
    made.catch_up(5)
    made.catch_up(5)
    assert [record["update"] for record in written] == [5]


def test_another_metric_begins_anew(tmp_path: Path) -> None:
    made, _ = evaluation(tmp_path, [1.0])
    made.run(5)
    kept = made.kept
    assert kept["best"] == 1.0
    made.config.best_mode = "max"
    made.__init__(made.config, made.measure, SimpleNamespace(samples=40, kept=kept), made.metrics, 20)
    assert (made.kept["best"], made.best_update, made.kept["evaluated"]) == (None, 0, 5)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("task", ["text_classification", "image_classification"])
@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_all_outputs_are_scikit_learns(task: str, classes: int, tmp_path: Path) -> None:
    made, random = load(tmp_path, task, evaluation__gather_outputs=True), np.random.default_rng(1)
    logits = np.round(random.normal(size=(60, classes)), 1).astype(np.float32)  # with ties
    labels = random.integers(0, classes, 60)
    found = made.evaluation_metrics(torch.from_numpy(np.column_stack([logits, labels])).float())
    shares = torch.from_numpy(logits).double().softmax(1).numpy()
    scores = [roc_auc_score(labels == c, shares[:, c]) for c in range(classes)]
    assert found["eval_auc"] == pytest.approx(np.mean(scores), rel=1e-6)
    assert found["eval_accuracy"] == pytest.approx(accuracy_score(labels, logits.argmax(1)))
    assert found["eval_f1"] == pytest.approx(f1_score(labels, logits.argmax(1), average="macro"))
    assert found["eval_loss"] == pytest.approx(log_loss(labels, shares), rel=1e-6)


def test_metrics_of_all_numbers_are_scikit_learns_and_scipys(tmp_path: Path) -> None:
    made, random = load(tmp_path, "text_regression", evaluation__gather_outputs=True), np.random.default_rng(1)
    labels = np.round(random.normal(size=60), 1)
    predicted = np.round(labels + random.normal(size=60), 1)
    found = made.evaluation_metrics(torch.from_numpy(np.column_stack([predicted, labels])))
    assert found["eval_mae"] == pytest.approx(mean_absolute_error(labels, predicted))
    assert found["eval_r2"] == pytest.approx(r2_score(labels, predicted))
    assert found["eval_pearson"] == pytest.approx(pearsonr(predicted, labels).statistic)
    assert found["eval_spearman"] == pytest.approx(spearmanr(predicted, labels).statistic)
