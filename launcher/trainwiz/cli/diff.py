"""`trainwiz diff`: what changed between two runs."""

from __future__ import annotations

import typer

from trainwiz.language import t


def diff(
    before: str = typer.Argument(..., metavar="RUN", help=t("A run's name or folder.")),
    after: str = typer.Argument("latest", metavar="[RUN]", help=t("Another (default: the newest here).")),
    json: bool = typer.Option(False, "--json", help=t("The differences as JSON.")),
) -> None:
    """Compare plan, versions, machine, code and result."""
    from trainwiz.record.differences import differences
    from trainwiz.store import history
    from trainwiz.ui import console
    from trainwiz.ui import differences as shown

    a, b = history.find(before), history.find(after)
    found = differences(history.read(a), history.read(b))
    if json:
        console.data_json(shown.to_dict(a.name, b.name, found))
    else:
        shown.show(a.name, b.name, found)
