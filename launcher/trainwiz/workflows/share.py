"""`trainwiz share`: a run as one anonymous row of measurements."""

from __future__ import annotations

from trainwiz.errors import TrainwizError
from trainwiz.message import say
from trainwiz.record import shared
from trainwiz.store import history
from trainwiz.ui import console


def share(run: str) -> None:
    """Print the row on stdout, and the names of its columns on stderr. Raises `TrainwizError` where there is none."""
    found = history.find(run)
    line = shared.row(history.read(found))
    if line is None:
        raise TrainwizError(
            say("run {name} has no measurements to share", name=found.name),
            say("launch a project with this version; a killed run has no measurements"),
        )
    console.talk(shared.header(), style="dim")
    console.data(line)
