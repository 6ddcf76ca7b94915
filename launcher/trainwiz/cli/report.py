"""`trainwiz report`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def report(
    run: str = typer.Argument(
        "latest", metavar="[RUN]", help=t("A run's name or folder, or a project's folder (default: the newest here).")
    ),
    output: str = typer.Option(
        "", "--output", "-o", metavar="FILE", help=t("Where to write it (default: in the run).")
    ),
) -> None:
    """Write the page; its path goes to stdout."""
    from trainwiz.workflows import report

    report.write(run, output or None)
