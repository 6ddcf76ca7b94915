"""`trainwiz report`: a run as one HTML file."""

from __future__ import annotations

import time
from pathlib import Path

from trainwiz.store import atomic, history, plans, templates
from trainwiz.ui import console
from trainwiz.ui.page import TEMPLATE, page
from trainwiz.workflows.jobs import output as jobs

FILE = "report.html"


def write(run: str, output: str | None) -> None:
    """Write the page, by default into the run's folder; print its path."""
    jobs.insist_on_records(run)
    found = history.find(run)
    lineage = history.lineage(found)
    html = page(lineage, plans.reasons(lineage[-1].plan_text), templates.load()[TEMPLATE], time.time())
    file = Path(output) if output else found.folder / FILE
    atomic.write(file, html)
    console.data(str(file))
