"""`trainwiz recipes`: what each recipe becomes on its GPUs."""

from __future__ import annotations

from pathlib import Path

from trainwiz.decide import Decided
from trainwiz.plan import parse_values
from trainwiz.recipes import RECIPES, Recipe
from trainwiz.ui import console
from trainwiz.ui import recipes as table
from trainwiz.workflows.create.planner import Planner


def show(*, as_json: bool) -> None:
    """Print the recipes; nothing is asked of the hub."""
    rows = [(recipe, decided(recipe)) for recipe in RECIPES]
    if as_json:
        console.data_json([table.to_dict(*row) for row in rows])
    else:
        table.show(rows)


def decided(recipe: Recipe) -> Decided:
    """The plan of a recipe, by the table of well-known models."""
    from trainwiz import models
    from trainwiz.decide import decide
    from trainwiz.project import ModelFacts

    shape = models.known(recipe.model)
    facts = None
    if shape:
        facts = ModelFacts(
            name=recipe.model, kind="hub", parameters=shape.parameters, size_source="table", transformer=shape
        )
    machine = Planner(folder=Path(), gpus=recipe.gpus).machine if recipe.gpus else None
    return decide(parse_values(recipe.answers), machine, model=facts)
