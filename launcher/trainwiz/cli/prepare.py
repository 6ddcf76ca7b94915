"""`trainwiz prepare`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def prepare(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Project folder (default: the current folder).")),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("Python interpreter that runs the training.")),
) -> int:
    """Read all data and write its tokens, on all cores; Ctrl-C keeps what is done."""
    from trainwiz.workflows import prepare

    return prepare.prepare(folder, python=python or None)
