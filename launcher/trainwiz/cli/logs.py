"""`trainwiz logs`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def logs(
    target: str = typer.Argument(
        "latest", metavar="[RUN]", help=t("A run's name or folder, or a project's folder (default: the newest here).")
    ),
    run: str = typer.Option("", "--run", metavar="RUN", help=t("Which run (default: the newest).")),
    rank: int = typer.Option(0, "--rank", metavar="N", min=0, help=t("Whose log.")),
    follow: bool = typer.Option(False, "--follow", "-f", help=t("Go on until the run ends; Ctrl-C leaves it running.")),
) -> None:
    """Show a rank's log on stdout, byte for byte."""
    from trainwiz.workflows import logs

    logs.show(target, run or None, rank, follow=follow)
