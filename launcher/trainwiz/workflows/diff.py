"""`trainwiz diff`: what changed between two runs."""

from __future__ import annotations

from pathlib import Path

from trainwiz import files
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.record.differences import differences
from trainwiz.store import history, runs
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui import differences as shown


def show(before: str, after: str, *, as_json: bool) -> None:
    """Compare plan, versions, machine, code and result of two runs, given by name or folder."""
    a = history.find(before)
    # The newest run is that of the first one's project, from wherever that was named.
    b = history.find(after, a.project if after == runs.LATEST else Path())
    if after == runs.LATEST and files.resolved(a.folder) == files.resolved(b.folder):
        a = _earlier(b)
    found = differences(history.read(a), history.read(b))
    if as_json:
        console.data_json(shown.to_dict(a.name, b.name, found))
    else:
        shown.show(a.name, b.name, found)


def _earlier(run: Run) -> Run:
    """The run before the one that was named as both. Raises `UsageError` where there is none."""
    project = run.project
    before = [each for each in runs.every(project) if each.name < run.name]
    if not before:
        raise UsageError(
            say("{folder} has no earlier run to compare {name} with", folder=project / runs.RUNS, name=run.name),
            say("give two runs: trainwiz diff RUN RUN; to list them: {command}", command=history.listing(project)),
        )
    return max(before, key=lambda each: (each.name[:19], int(each.name[20:])))
