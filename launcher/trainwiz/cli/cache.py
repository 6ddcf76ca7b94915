"""`trainwiz cache`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def cache(
    folder: str = typer.Argument(
        ".", metavar="[DIR]", help=t("A project, or a folder of tokenized data (default: the current folder).")
    ),
    clean: bool = typer.Option(
        False, "--clean", help=t("Delete what was not used for --days, and what was left unfinished.")
    ),
    days: float = typer.Option(30.0, "--days", metavar="N", min=0, help=t("Keep what was used in the last N days.")),
    json: bool = typer.Option(False, "--json", help=t("Print the list as JSON.")),
) -> None:
    """List the tokenized data of a project: size, tokens, when it was used."""
    from trainwiz.workflows import cache

    cache.show(folder, clean=clean, days=days, as_json=json)
