"""`trainwiz export`: write a checkpoint's weights whole for `from_pretrained`, from shards too, without a GPU."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from trainwiz import resources
from trainwiz.checkpoint import Checkpoint, State, not_gathered
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.probe import interpreter, weights
from trainwiz.probe.weights import Gathered
from trainwiz.quantities import size
from trainwiz.store import checkpoints
from trainwiz.ui import console
from trainwiz.workflows.checkpoints import verify

_MODEL, _MERGED = "model", "merged"
"""Where a task puts its weights; and, beside an adapter, the whole model that both make."""


def export(folder: str, *, update: int | None, output: str | None, python: str | None, trust: bool = False) -> None:
    """Verify the checkpoint, gather its weights, write them, and read them back. `update` None takes the newest.

    `trust`: also unpickle classes that are not known, which could run any code.
    """
    place = checkpoints.folder_of(Path(folder))
    project = _project(place, Path(folder))
    found = _chosen(place, update)
    checkpoint = Path(found.path)
    targets = _targets(Path(output) if output else project / "exported" / checkpoint.name)
    if problem := not_gathered(found.layout):
        raise TrainwizError(problem.what, problem.instead)
    if not checkpoints.is_own(checkpoint):
        console.talk(
            t("note: not signed with your key; somebody else, another machine or an older train.py wrote it"),
            style="warning",
        )
    console.talk(t("gathering the weights of {checkpoint}", checkpoint=checkpoint))
    executable = interpreter.located(python or sys.executable)
    gathered, written = _gather(executable, project, checkpoint, targets, trust)
    console.talk(
        t("written and read back: {size}, tensors: {n}", size=size(gathered.size_bytes), n=gathered.tensors),
        style="good",
    )
    if not gathered.known:
        console.talk(
            t("the files use other tensor names than the model; the values were not compared"),
            style="warning",
        )
    for each in written:
        console.data(str(each))


def _project(place: Path, folder: Path) -> Path:
    """The folder with the task that was trained: that of the checkpoints or one above it."""
    for parent in (folder.resolve(), *place.parents):
        if (parent / "task.py").is_file():
            return parent
    raise UsageError(
        say("no task.py found above {folder}; the model cannot be built", folder=place),
        say("pass the project this training belongs to: trainwiz export DIR"),
    )


def _chosen(place: Path, update: int | None) -> Checkpoint:
    """The checkpoint of that update, or the newest undamaged one. Says which newer ones it skips."""
    complete = [each for each in checkpoints.every(place) if each.state is State.COMPLETE]
    wanted = [each for each in complete if update in (None, each.update)]
    if not wanted:
        raise UsageError(
            say("{folder} has no complete checkpoint for update {update}", folder=place, update=update)
            if update is not None
            else say("{folder} has no complete checkpoint", folder=place),
            say("list the checkpoints: trainwiz checkpoints {folder}", folder=place),
        )
    for each in reversed(wanted):
        (found,) = verify([each]).values()
        if found.whole:
            return each
        console.talk(
            t(
                "skipping damaged checkpoint {checkpoint}: {files}",
                checkpoint=each.path,
                files=", ".join(found.damaged),
            ),
            style="warning",
        )
    raise TrainwizError(say("no intact checkpoint in {folder}", folder=place))


def _targets(target: Path) -> dict[str, Path]:
    """Folders by what they will hold. Raises `UsageError` where one of them exists."""
    targets = {_MODEL: target, _MERGED: target.with_name(f"{target.name}-{_MERGED}")}
    for each in targets.values():
        if each.exists():
            raise UsageError(
                say("{folder} already exists; nothing was written", folder=each),
                say("choose another folder: trainwiz export --output DIR"),
            )
    return targets


def _gather(
    python: str, project: Path, checkpoint: Path, targets: Mapping[str, Path], trust: bool
) -> tuple[Gathered, list[Path]]:
    """Write the weights into a temporary folder and read them back; rename it only if they are right."""
    target = targets[_MODEL]
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        reading = resources.train_templates() / "parts" / "trust.py"
        gathered = weights.gather(
            python, project=project, checkpoint=checkpoint, output=aside / _MODEL, reading=reading, trust=trust
        )
        if gathered.problem or gathered.different or not gathered.tensors:
            raise TrainwizError(_failed(gathered))
        return gathered, [(aside / name).rename(each) for name, each in targets.items() if (aside / name).exists()]
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _failed(gathered: Gathered) -> Message:
    if gathered.problem:
        return say("cannot gather the weights: {problem}", problem=gathered.problem)
    if gathered.different:
        names = ", ".join(gathered.different[:3])
        return say("tensors read back from the exported files differ from the checkpoint: {names}", names=names)
    return say("the task wrote no tensors; check save_model in task.py")
