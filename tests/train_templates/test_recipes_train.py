"""Every kind of recipe, shrunk: a small model of random weights and few rows, three updates on the CPU."""

import json
import math
from pathlib import Path

import projects
import pytest
import warm
from test_sft import CHATML, conversations_file, instructed

from trainwiz.recipes import RECIPES, Recipe

Kind = tuple[str, str, bool, str]

SHRUNK = {
    "machine.device": "cpu",
    "machine.num_processes": 1,
    "precision.mixed_precision": "no",
    "batch.real_batch_size": 4,
    "batch.per_device_batch_size": 2,
    "schedule.train_strategy": "steps",
    "schedule.n_steps": 3,
    "tracking.logging_steps": 1,
    "data.eval": "",
}
READING = 96
"""Tokens of a sample, for what reads text."""
NATURAL = {"causal_lm": math.log(256), "sft": math.log(264), "preference": math.log(2)}
"""The loss of a model that knows nothing: of the vocabulary, and of two answers that are equally likely."""


def kind(recipe: Recipe) -> Kind:
    """What makes a recipe another training than the others, sizes and GPUs apart."""
    new = bool(recipe.more.get("model.from_scratch")) or recipe.model == "tiny"
    return recipe.task, recipe.adapter, new, str(recipe.more.get("preference.loss", ""))


KINDS = {kind(recipe): recipe for recipe in reversed(RECIPES)}
"""The first recipe of each kind."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model, conversations and pairs of answers, which all kinds share."""
    folder = tmp_path_factory.mktemp("own")
    pairs = [{"prompt": f"{i} + 1?", "chosen": f"it is {i + 1}", "rejected": "who knows"} for i in range(24)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return {
        "model": str(instructed(folder / "model", CHATML)),
        "sft": str(conversations_file(folder)),
        "preference": str(folder / "pairs.jsonl"),
    }


def test_the_table_has_every_recipe() -> None:
    assert len(KINDS) >= 10
    assert all(kind(recipe) in KINDS for recipe in RECIPES)


@pytest.mark.train
@pytest.mark.parametrize("recipe", KINDS.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_trains_in_little(recipe: Recipe, own: dict[str, str], tmp_path: Path) -> None:
    task, adapter, new, loss = kind(recipe)
    values: dict[str, object] = {**SHRUNK}
    if task in NATURAL:
        values["batch.sequence_length"] = READING
    if task in own and not (new and task == "sft"):
        values |= {"model.name": own["model"], "data.train": own[task]}
    elif recipe.model != "tiny":
        values["model.name"] = "tiny"
    folder = projects.make(tmp_path / "project", values, "--recipe", recipe.name)
    done = warm.launch(folder)
    assert done.code == 0, done.err
    losses = projects.losses(folder)
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))
    assert len(set(losses)) == 3, "each update changed something"
    if task in NATURAL and loss != "simpo":
        assert losses[0] == pytest.approx(NATURAL[task], rel=0.06)
    saved = folder / "runs" / "latest" / "model"
    assert (saved / "adapter_model.safetensors").is_file() == (adapter != "none")
    config = json.loads((folder / "runs" / "latest" / "config.json").read_text())
    assert config["n_steps"] == 3
