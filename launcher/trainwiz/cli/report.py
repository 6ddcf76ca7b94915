"""`trainwiz report`: a run as one HTML file."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from trainwiz.language import t

FILE = "report.html"


def report(
    run: str = typer.Argument(
        "latest", metavar="[RUN]", help=t("A run's name or folder, or a project's folder (default: the newest here).")
    ),
    output: str = typer.Option(
        "", "--output", "-o", metavar="FILE", help=t("Where to write it (default: in the run).")
    ),
) -> None:
    """Write the page; its path goes to stdout."""
    from trainwiz.store import atomic, history, plans, templates
    from trainwiz.ui import console
    from trainwiz.ui.page import TEMPLATE, page

    found = history.find(run)
    lineage = history.lineage(found)
    html = page(lineage, plans.reasons(lineage[-1].plan_text), templates.load()[TEMPLATE], time.time())
    file = Path(output) if output else found.folder / FILE
    atomic.write(file, html)
    console.data(str(file))
