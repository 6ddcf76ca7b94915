"""`trainwiz board`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def board(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Project folder (default: the current folder).")),
    port: int = typer.Option(
        8017, "--port", metavar="N", min=1024, max=65000, help=t("Port on 127.0.0.1; the next free one if it is taken.")
    ),
) -> None:
    """Serve one page on 127.0.0.1 that compares runs while they go on; Ctrl-C ends it, and no run."""
    from trainwiz.workflows import board

    board.show(folder, port=port)
