"""`trainwiz export`: the weights of a checkpoint, whole, for `from_pretrained`; from shards too, without a GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.checkpoint import Checkpoint
    from trainwiz.message import Message
    from trainwiz.probe.weights import Gathered

_NEWEST = -1
_MODEL, _MERGED = "model", "merged"
"""Where a task puts its weights; and, beside an adapter, the whole model that both make."""


def export(
    folder: str = typer.Argument(
        ".", metavar="[DIR]", help=t("A project, a run's folder or a folder of checkpoints (default: here).")
    ),
    update: int = typer.Option(_NEWEST, "--checkpoint", metavar="N", help=t("Of which update (default: the newest).")),
    output: str = typer.Option("", "--output", metavar="DIR", help=t("Where to (default: exported/ in the project).")),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The Python that runs the training.")),
) -> None:
    """Compare the checkpoint with its manifest, gather its weights, write them, and read them back."""
    from trainwiz.checkpoint import not_gathered
    from trainwiz.store import checkpoints as stored
    from trainwiz.ui import console
    from trainwiz.ui.checkpoints import amount
    from trainwiz.workflows import interpreter

    place = stored.folder_of(Path(folder))
    project = _project(place, Path(folder))
    found = _chosen(place, update)
    chosen = Path(found.path)
    target = Path(output) if output else project / "exported" / chosen.name
    targets = {_MODEL: target, _MERGED: target.with_name(f"{target.name}-{_MERGED}")}
    for each in targets.values():
        if each.exists():
            raise UsageError(
                say("{folder} is there already; nothing was written", folder=each),
                say("name another: trainwiz export --output DIR"),
            )
    if problem := not_gathered(found.layout):
        raise TrainwizError(problem.what, problem.instead)
    console.talk(t("gathering the weights of {checkpoint}", checkpoint=chosen))
    gathered, written = _gather(interpreter.path_of(python), project, chosen, targets)
    console.talk(
        t("written and read back: {size}, tensors: {n}", size=amount(gathered.size_bytes), n=gathered.tensors),
        style="good",
    )
    if not gathered.known:
        console.talk(
            t("the files name their tensors otherwise than the model does, so their values were not compared"),
            style="warning",
        )
    for each in written:
        console.data(str(each))


def _gather(python: str, project: Path, checkpoint: Path, targets: Mapping[str, Path]) -> tuple[Gathered, list[Path]]:
    """Write the weights aside and read them back; only what is right gets its name."""
    from trainwiz.probe import weights

    target = targets[_MODEL]
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        gathered = weights.gather(python, project=project, checkpoint=checkpoint, output=aside / _MODEL)
        if gathered.problem or gathered.different or not gathered.tensors:
            raise TrainwizError(_failed(gathered))
        return gathered, [(aside / name).rename(each) for name, each in targets.items() if (aside / name).exists()]
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _project(place: Path, folder: Path) -> Path:
    """The folder with the task that was trained: that of the checkpoints or one above it."""
    for parent in (folder.resolve(), *place.parents):
        if (parent / "task.py").is_file():
            return parent
    raise UsageError(
        say("no task.py above {folder}: the model cannot be built", folder=place),
        say("name the project whose training it was: trainwiz export DIR"),
    )


def _chosen(place: Path, update: int) -> Checkpoint:
    """The checkpoint of that update, or the newest that is as it was written. Says which newer ones it passes over."""
    from trainwiz.checkpoint import State
    from trainwiz.store import checkpoints as stored
    from trainwiz.ui import console
    from trainwiz.ui.checkpoints import Reading

    complete = [each for each in stored.every(place) if each.state is State.COMPLETE]
    wanted = [each for each in complete if update in (_NEWEST, each.update)]
    if not wanted:
        raise UsageError(
            say("{folder} has no complete checkpoint of update {update}", folder=place, update=update)
            if update != _NEWEST
            else say("{folder} has no complete checkpoint", folder=place),
            say("trainwiz checkpoints {folder} lists what there is", folder=place),
        )
    for each in reversed(wanted):
        reading = Reading(each.size_bytes)
        found = stored.verify(Path(each.path), seconds=float("inf"), progress=reading.add) or stored.NOTHING
        reading.end()
        if found.whole:
            return each
        console.talk(
            t("skipping {checkpoint}: damaged: {files}", checkpoint=each.path, files=", ".join(found.damaged)),
            style="warning",
        )
    raise TrainwizError(say("no checkpoint in {folder} is as it was written", folder=place))


def _failed(gathered: Gathered) -> Message:
    if gathered.problem:
        return say("the weights could not be gathered: {problem}", problem=gathered.problem)
    if gathered.different:
        names = ", ".join(gathered.different[:3])
        return say("read back, these tensors are not those of the checkpoint: {names}", names=names)
    return say("the task wrote no tensors; look at save_model in task.py")
