"""The recipes as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwiz.decide import Decided
from trainwiz.language import t
from trainwiz.quantities import size
from trainwiz.recipes import Recipe
from trainwiz.ui import console, table
from trainwiz.ui.table import Cell


def show(rows: Sequence[tuple[Recipe, Decided]]) -> None:
    """Print the table, and how a recipe is used."""
    heads = (t("NAME"), t("TASK"), t("TRAINED"), t("GPUS"), t("STRATEGY"), t("PER GPU"))
    table.show([[Cell(text=head, style="bold") for head in heads], *(_cells(*row) for row in rows)])
    console.talk(t("start with one: trainwiz init my-project --recipe {name}", name=rows[-1][0].name))


def to_dict(recipe: Recipe, decided: Decided) -> dict[str, Any]:
    """A recipe for `--json`."""
    return {
        "name": recipe.name,
        "gpus": recipe.gpus or None,
        "answers": recipe.answers,
        "strategy": decided.plan.strategy.label,
        "peak_bytes": decided.outlook.peak_bytes,
    }


def _cells(recipe: Recipe, decided: Decided) -> list[Cell]:
    method = t("all weights") if recipe.adapter == "none" else recipe.adapter
    peak = decided.outlook.peak_bytes
    values = (
        recipe.name,
        recipe.task,
        method,
        recipe.gpus or t("any machine"),
        decided.plan.strategy.label,
        size(peak) if peak else "-",
    )
    return [Cell(text=value) for value in values]
