"""`trainwiz report`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def report(
    run: str = typer.Argument(
        "latest",
        metavar="[RUN]",
        help=t("Name or folder of a run, or a project folder (default: the newest run here)."),
    ),
    output: str = typer.Option(
        "", "--output", "-o", metavar="FILE", help=t("Output file (default: in the run folder).")
    ),
) -> None:
    """Write the page; its path goes to stdout."""
    from trainwiz.workflows import report

    report.write(run, output or None)
