"""`trainwiz runs`: what was launched in a project, and how it ended."""

from __future__ import annotations

import time
from pathlib import Path

from trainwiz.record.run import summary
from trainwiz.store import history, runs
from trainwiz.ui import console
from trainwiz.ui import runs as table


def show(folder: str, *, as_json: bool) -> None:
    """List the runs of a project, the oldest first. Raises `UsageError` where there are none."""
    project = Path(folder)
    found = runs.every(project)
    if not found and not as_json:
        history.find(runs.LATEST, project)
    now = time.time()
    summaries = [summary(history.brief(run), now) for run in found]
    if as_json:
        console.data_json([table.to_dict(each) for each in summaries])
    else:
        table.show(summaries)
