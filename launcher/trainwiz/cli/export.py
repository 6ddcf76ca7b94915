"""`trainwiz export`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t

_NEWEST = -1


def export(
    folder: str = typer.Argument(
        ".", metavar="[DIR]", help=t("A project, a run folder or a checkpoint folder (default: the current folder).")
    ),
    update: int = typer.Option(
        _NEWEST, "--checkpoint", metavar="N", help=t("Update whose checkpoint to export (default: the newest).")
    ),
    output: str = typer.Option(
        "", "--output", metavar="DIR", help=t("Output folder (default: exported/ in the project).")
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("Python interpreter that runs the training.")),
) -> None:
    """Compare the checkpoint with its manifest, gather its weights, write them, and read them back."""
    from trainwiz.workflows import export

    export.export(folder, update=None if update == _NEWEST else update, output=output or None, python=python or None)
