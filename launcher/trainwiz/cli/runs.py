"""`trainwiz runs`: what was launched here, and what became of it."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from trainwiz.language import t


def runs(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("The project (default: here).")),
    json: bool = typer.Option(False, "--json", help=t("The runs as JSON.")),
) -> None:
    """All runs of a project, the oldest first."""
    from trainwiz.record.run import summary
    from trainwiz.store import history
    from trainwiz.store import runs as stored
    from trainwiz.ui import console
    from trainwiz.ui import runs as shown

    project = Path(folder)
    found = stored.every(project)
    if not found and not json:
        history.find(stored.LATEST, project)
    now = time.time()
    summaries = [summary(history.brief(run), now) for run in found]
    if json:
        console.data_json([shown.to_dict(each) for each in summaries])
    else:
        shown.show(summaries)
