"""`trainwiz diagnose`: why a run failed, from its records, or from any log."""

from __future__ import annotations

import typer

from trainwiz.language import t


def diagnose(
    target: str = typer.Argument(
        "latest",
        metavar="[LOG|RUN]",
        help=t("Log of any training (- reads from a pipe), or a run (default: the newest run)."),
    ),
    json: bool = typer.Option(False, "--json", help=t("Print the diagnosis as JSON.")),
) -> int:
    """Say which rank failed first, why, and what to type."""
    from trainwiz.workflows import diagnose

    return diagnose.diagnose(target, json=json)
