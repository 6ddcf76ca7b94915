"""`trainwiz recipes`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def recipes(json: bool = typer.Option(False, "--json", help=t("Print the list as JSON."))) -> None:
    """List the recipes: model, method, GPUs, strategy and memory."""
    from trainwiz.workflows import recipes

    recipes.show(as_json=json)
