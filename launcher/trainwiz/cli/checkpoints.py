"""`trainwiz checkpoints`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def checkpoints(
    folder: str = typer.Argument(
        ".", metavar="[DIR]", help=t("A project, a run folder or a checkpoint folder (default: the current folder).")
    ),
    quick: bool = typer.Option(
        False, "--quick", help=t("Do not read the files; do not report whether they are valid.")
    ),
    json: bool = typer.Option(False, "--json", help=t("Print the checkpoints as JSON.")),
) -> int:
    """List all checkpoints by update; the exit code is 1 if a complete one is damaged."""
    from trainwiz.workflows import checkpoints

    return checkpoints.show(folder, quick=quick, as_json=json)
