"""`trainwiz checkpoints`: what a training left to go on from, compared with what was written."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from trainwiz.language import t


def checkpoints(
    folder: str = typer.Argument(
        ".", metavar="[DIR]", help=t("A project, a run's folder or a folder of checkpoints (default: here).")
    ),
    quick: bool = typer.Option(False, "--quick", help=t("Do not read the files: leave open whether they are valid.")),
    json: bool = typer.Option(False, "--json", help=t("The checkpoints as JSON.")),
) -> None:
    """All checkpoints by update; the exit code is 1 if a complete one is not as it was written."""
    from trainwiz.checkpoint import State
    from trainwiz.store import checkpoints as stored
    from trainwiz.ui import checkpoints as shown
    from trainwiz.ui import console

    place = stored.folder_of(Path(folder))
    found = stored.every(place)
    reading = shown.Reading(sum(each.size_bytes for each in found if each.state is State.COMPLETE))
    rows: list[shown.Row] = []
    for each in found:
        looked = each.state is State.COMPLETE and not quick
        verified = stored.verify(Path(each.path), seconds=float("inf"), progress=reading.add) if looked else None
        rows.append((each, verified or (stored.NOTHING if looked else None)))
    reading.end()
    if json:
        console.data_json([shown.to_dict(each, verified) for each, verified in rows])
    else:
        console.talk(console.styled(str(place), "dim"))
        shown.show(rows, time.time())
    if any(verified and verified.damaged for _, verified in rows):
        raise typer.Exit(1)
