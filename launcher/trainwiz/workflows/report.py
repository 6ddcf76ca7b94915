"""`trainwiz report`: a run as one HTML file."""

from __future__ import annotations

import time
from pathlib import Path

from trainwiz.store import atomic, history, plans, runs, templates
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui.page import TEMPLATE, page
from trainwiz.workflows.jobs import copy
from trainwiz.workflows.jobs import output as jobs

FILE = "report.html"


def write(run: str, output: str | None) -> None:
    """Write the page, by default into the run's folder; of a job whose folder is elsewhere, into `runs/` here."""
    if elsewhere := jobs.meant(run):
        with copy.of(*elsewhere) as copied:
            _write(copied.run, output or str(elsewhere[1] / runs.RUNS / f"{copied.run.name}.html"))
        return
    found = history.find(run)
    _write(found, output or str(found.folder / FILE))


def _write(run: Run, file: str) -> None:
    """Write the page, and print its path."""
    lineage = history.lineage(run)
    html = page(lineage, plans.reasons(lineage[-1].plan_text), templates.load()[TEMPLATE], time.time())
    atomic.write(Path(file), html)
    console.data(file)
