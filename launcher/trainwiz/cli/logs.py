"""`trainwiz logs`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def logs(
    target: str = typer.Argument(
        "latest",
        metavar="[RUN]",
        help=t("Name or folder of a run, or a project folder (default: the newest run here)."),
    ),
    run: str = typer.Option("", "--run", metavar="RUN", help=t("Which run (default: the newest).")),
    rank: int = typer.Option(0, "--rank", metavar="N", min=0, help=t("Rank whose log to show.")),
    follow: bool = typer.Option(
        False, "--follow", "-f", help=t("Follow the log until the run ends; Ctrl-C leaves the run running.")
    ),
) -> None:
    """Show a rank's log on stdout, byte for byte."""
    from trainwiz.workflows import logs

    logs.show(target, run or None, rank, follow=follow)
