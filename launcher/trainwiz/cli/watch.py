"""`trainwiz watch`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def watch(
    target: str = typer.Argument(
        "latest",
        metavar="[RUN]",
        help=t("Name or folder of a run, or a project folder (default: the newest run here)."),
    ),
    run: str = typer.Option("", "--run", metavar="RUN", help=t("Which run (default: the newest).")),
) -> None:
    """Watch live on a terminal until the run ends or q is pressed; without one, print a snapshot."""
    from trainwiz.workflows import watch

    watch.watch(target, run or None)
