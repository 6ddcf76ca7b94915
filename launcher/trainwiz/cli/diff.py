"""`trainwiz diff`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def diff(
    before: str = typer.Argument(..., metavar="RUN", help=t("A run's name or folder.")),
    after: str = typer.Argument("latest", metavar="[RUN]", help=t("Another run (default: the newest run here).")),
    json: bool = typer.Option(False, "--json", help=t("Print the differences as JSON.")),
) -> None:
    """Compare plan, versions, machine, code and result."""
    from trainwiz.workflows import diff

    diff.show(before, after, as_json=json)
