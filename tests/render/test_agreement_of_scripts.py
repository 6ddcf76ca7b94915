"""What the plan makes agrees with the plan: no value of any strategy is taken for somebody's edit."""

from __future__ import annotations

from typing import Any

import plans
import pytest

from trainwiz import fields, strategies, tasks
from trainwiz import plan as planning
from trainwiz.plan import Plan
from trainwiz.render import agreement, settings, training_files
from trainwiz.store import templates

TEXTS = templates.load()


def stated(plan: Plan) -> dict[str, Any]:
    """What the script of this plan states when it runs as it was generated."""
    texts = {file.path: file.text for file in training_files(plan, TEXTS)}
    return {**fields.literals(texts["task.py"]), **fields.literals(texts["train.py"])}


COLOSSAL = [
    {"engine": row.engine, "strategy.kind": row.kind, "precision.mixed_precision": "bf16", "machine.device": "cuda"}
    for row in strategies.every()
    if row.engine != "accelerate"
]
TASKS = [{"task": task.name} for task in tasks.every()]
MODELS = [{"model.name": "llama-1b"}, {"model.name": "org/model", "model.from_scratch": False}]
EPOCHS = {"schedule.train_strategy": "epochs", "schedule.n_epochs": 2, "schedule.n_steps": None}


@pytest.mark.parametrize("changes", [*plans.STRATEGIES, *COLOSSAL, *TASKS, *MODELS, EPOCHS], ids=str)
def test_generated_scripts_agree(changes: dict[str, Any]) -> None:
    plan = planning.with_changes(plans.BASE, changes)
    files = training_files(plan, TEXTS)
    texts = {file.path: file.text for file in files}
    assert "Metrics(config" in texts["train.py"]
    assert '"config.json"' in texts["metrics.py"]
    assert agreement.in_texts(plan, files, texts) == ()
    assert agreement.in_statement(plan, files, stated(plan)) == ()
    other = agreement.in_statement(plan, files, {**stated(plan), "learning_rate": 7.0})
    assert [(one.key, one.field, one.scripted) for one in other] == [
        ("optimizer.learning_rate", "learning_rate", "7.0")
    ]


def test_what_a_run_used_in_the_plans_words() -> None:
    plan = planning.with_changes(plans.BASE, {"schedule.n_steps": 100})
    assert settings.used(plan, {"learning_rate": 0.5, "hidden_size": 8}) == {"optimizer.learning_rate": 0.5}
    assert settings.used(plan, {"n_steps": 0, "n_epochs": 3}) == {
        "schedule.n_steps": None,
        "schedule.n_epochs": 3,
        "schedule.train_strategy": "epochs",
    }
    assert settings.used(plan, {"checkpoints_total_limit": 0}) == {"checkpoint.checkpoints_total_limit": None}
    assert settings.used(plan, {"train_data": "corpus.txt"}) == {"data.train": "corpus.txt"}


def test_a_field_that_is_gone() -> None:
    without = {name: value for name, value in stated(plans.BASE).items() if name != "weight_decay"}
    [one] = agreement.in_statement(plans.BASE, training_files(plans.BASE, TEXTS), without)
    assert (one.key, one.planned, one.scripted) == ("optimizer.weight_decay", "0.1", "null")
