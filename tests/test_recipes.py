"""Each recipe becomes a plan that fits its GPUs, breaks no rule, and renders to programs."""

import ast
import json
from pathlib import Path

import pytest
import yaml

from trainwiz import rules
from trainwiz.cli import run
from trainwiz.estimate import estimate
from trainwiz.models import known
from trainwiz.plan import flat, parse, parse_values
from trainwiz.recipes import RECIPES, Recipe, named
from trainwiz.render import project
from trainwiz.rules import Facts
from trainwiz.store import templates
from trainwiz.workflows.create.planner import Planner
from trainwiz.workflows.recipes import decided

LOADED = templates.load()


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_fits_and_breaks_no_rule(recipe: Recipe) -> None:
    made = decided(recipe)
    plan, seen = made.plan, made.outlook
    assert {key: plan.get(key) for key in recipe.answers} == parse_values(recipe.answers)
    needed = None
    if recipe.gpus:
        assert seen.peak_bytes
        assert seen.memory_bytes
        assert 0 < seen.peak_bytes <= 0.9 * seen.memory_bytes
        assert plan.strategy.offload_optimizer_device == "none"
        assert plan.machine.num_processes == int(recipe.gpus.partition("x")[0])
        assert seen.parameters
        needed = estimate(plan, seen.parameters, known(recipe.model))
    machine = Planner(folder=Path(), gpus=recipe.gpus).machine if recipe.gpus else None
    facts = Facts(plan=plan, machine=machine, estimate=needed)
    assert [f for f in rules.check(facts, rules=rules.of_plans()) if f.level is not rules.registry.Level.HINT] == []
    files = {file.path: file.text for file in project(plan, LOADED, reasons={}, language="en")}
    assert {"train.py", "task.py", "requirements.txt", "trainwiz.yaml"} <= files.keys()
    for path in files:
        if path.endswith(".py"):
            ast.parse(files[path])


def test_recipes_have_names_of_their_own() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES) >= 25
    assert named(" TINY-cpu ") is RECIPES[0]
    assert named("tiny") is None


def test_init_begins_with_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "p"
    begin = ["init", str(folder), "--recipe", "llama-1b-new-8xh100", "--defaults", "--yes", "--steps", "70"]
    assert run(begin) == 0
    echoed = " ".join(capsys.readouterr().err.split())
    assert f"{folder} --defaults --yes --recipe llama-1b-new-8xh100 --set schedule.n_steps=70 Next, on that" in echoed
    text = (folder / "trainwiz.yaml").read_text()
    values = flat(parse(yaml.safe_load(text)))
    assert (values["model.name"], values["machine.num_processes"], values["schedule.n_steps"]) == ("llama-1b", 8, 70)
    assert "recipe llama-1b-new-8xh100" in text
    assert run([*begin, "--set", "model.name=gpt2-124m"]) == 0, "an answer comes before the recipe"
    assert "gpt2-124m" in (folder / "trainwiz.yaml").read_text()


def test_an_unknown_recipe_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "p"), "--recipe", "qwen2.5-7b-qlora", "--defaults", "--yes"]) == 2
    assert "did you mean qwen2.5-7b-qlora-" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_the_list_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes"]) == 0
    shown = capsys.readouterr()
    assert "qwen2.5-7b-qlora-2x4090" in shown.out
    assert "trainwiz init my-project --recipe" in shown.err
    assert run(["recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(RECIPES)
    assert next(row for row in rows if row["name"] == "qwen2.5-7b-qlora-2x4090")["strategy"] == "ddp"
