"""`trainwiz runs`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def runs(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Project folder (default: the current folder).")),
    json: bool = typer.Option(False, "--json", help=t("Print the runs as JSON.")),
) -> None:
    """List all runs of a project, the oldest first."""
    from trainwiz.workflows import runs

    runs.show(folder, as_json=json)
