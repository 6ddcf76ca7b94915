"""`trainwiz checkpoints`: list checkpoints and compare their files with what was written."""

from __future__ import annotations

import time
from pathlib import Path

from trainwiz import files
from trainwiz.checkpoint import Checkpoint, State
from trainwiz.outcome import Verified
from trainwiz.store import checkpoints
from trainwiz.ui import checkpoints as table
from trainwiz.ui import console


def show(folder: str, *, quick: bool, as_json: bool) -> int:
    """List a folder's checkpoints by update; 1 if a complete one is damaged. `quick` reads no files."""
    place, found = _found(Path(folder))
    complete = [] if quick else [each for each in found if each.state is State.COMPLETE]
    verified = verify(complete)
    rows = [(each, verified.get(each.path)) for each in found]
    if as_json:
        console.data_json([table.to_dict(each, files) for each, files in rows])
    else:
        console.talk(console.styled(str(place), "dim"))
        table.show(rows, time.time())
    return 1 if any(files.damaged for files in verified.values()) else 0


def _found(place: Path) -> tuple[Path, tuple[Checkpoint, ...]]:
    """The folder of checkpoints, and those in it; of a checkpoint itself, that one alone."""
    if not checkpoints.is_one(place):
        folder = checkpoints.folder_of(place)
        return folder, checkpoints.every(folder)
    own = files.resolved(place)
    return own.parent, tuple(each for each in checkpoints.every(own.parent) if Path(each.path).name == own.name)


def verify(complete: list[Checkpoint]) -> dict[str, Verified]:
    """What reading the files of complete checkpoints finds, by path; a terminal shows how far it is."""
    reading = table.Reading(sum(each.size_bytes for each in complete))
    found = {}
    for each in complete:
        verified = checkpoints.verify(Path(each.path), seconds=float("inf"), progress=reading.add)
        found[each.path] = verified or checkpoints.NOTHING
    reading.end()
    return found
