"""The weights of a checkpoint, written as the training writes its model: from shards too, without a GPU."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from trainwiz import files, resources
from trainwiz.checkpoint import Checkpoint, State, not_gathered
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.probe import weights
from trainwiz.probe.weights import Gathered
from trainwiz.quantities import size
from trainwiz.shell_words import quoted
from trainwiz.store import atomic, checkpoints
from trainwiz.ui import console
from trainwiz.workflows.checkpoints import verify

MODEL, MERGED = "model", "merged"
"""Where a task puts its weights; and, beside an adapter, the whole model that both make."""


def project_of(place: Path, folder: Path) -> Path:
    """The folder with the task that was trained, above the checkpoints: code that came with these never runs."""
    for parent in (files.resolved(folder), *place.parents):
        if (parent / "task.py").is_file() and not checkpoints.holds_any(parent):
            return parent
    raise UsageError(
        say("no task.py found above {folder}; the model cannot be built", folder=place),
        say("pass the project this training belongs to: trainwiz export DIR"),
    )


def located(place: Path, update: int | None) -> tuple[Path, Path]:
    """The checkpoint that is meant, and its project's folder.

    `place` is a checkpoint itself, whose files `refuse_damaged` compares, or a folder with several: of these the one
    of `update`, or the newest that is not damaged. Raises `UsageError` where there is none, or another was named.
    """
    if not checkpoints.is_one(place):
        folder = checkpoints.folder_of(place)
        project = project_of(folder, place)  # before gigabytes are read
        return Path(chosen(folder, update).path), project
    checkpoint = files.resolved(place)
    own = checkpoints.manifest(checkpoint).get("update")
    if None not in (update, own) and update != own:
        raise UsageError(
            say("{folder} is the checkpoint of update {own}, not {update}", folder=place, own=own, update=update),
            say("list the checkpoints: trainwiz checkpoints {folder}", folder=quoted(place.parent)),
        )
    return checkpoint, project_of(checkpoint, place)


def chosen(place: Path, update: int | None) -> Checkpoint:
    """The checkpoint of that update, or the newest undamaged one. Says which newer ones it skips."""
    complete = [each for each in checkpoints.every(place) if each.state is State.COMPLETE]
    wanted = [each for each in complete if update in (None, each.update)]
    if not wanted:
        raise UsageError(
            say("{folder} has no complete checkpoint for update {update}", folder=place, update=update)
            if update is not None
            else say("{folder} has no complete checkpoint", folder=place),
            say("list the checkpoints: trainwiz checkpoints {folder}", folder=quoted(place)),
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


def refuse_damaged(checkpoint: Path) -> None:
    """Raise `TrainwizError` for a checkpoint whose files are not as its manifest says."""
    found = checkpoints.verify(checkpoint, seconds=float("inf")) or checkpoints.NOTHING
    if not found.whole:
        raise TrainwizError(
            say(
                "checkpoint {checkpoint} is damaged: {files}",
                checkpoint=checkpoint,
                files=", ".join(found.damaged),
            ),
            say("list the checkpoints: trainwiz checkpoints {folder}", folder=quoted(checkpoint.parent)),
        )


def targets_of(target: Path) -> dict[str, Path]:
    """Folders by what they will hold. Raises `UsageError` where one of them exists."""
    targets = {MODEL: target, MERGED: target.with_name(f"{target.name}-{MERGED}")}
    for each in targets.values():
        if os.path.lexists(each):  # a link that leads nowhere is in the way, too
            raise UsageError(
                say("{folder} already exists; nothing was written", folder=each),
                say("export to another folder: the same command with --output DIR"),
            )
    return targets


def gather(
    python: str, project: Path, checkpoint: Path, targets: Mapping[str, Path], *, average: bool, trust: bool
) -> list[Path]:
    """Write the weights into a temporary folder and read them back; rename it only if they are right."""
    if problem := not_gathered(_layout(checkpoint)):
        raise TrainwizError(problem.what, problem.instead)
    if not checkpoints.is_own(checkpoint):
        console.talk(
            t(
                "note: not signed with your key: it was written by somebody else, on another machine or by an "
                "older train.py"
            ),
            style="warning",
        )
    console.talk(t("gathering the weights of {checkpoint}", checkpoint=checkpoint))
    target = targets[MODEL]
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    atomic.make_folder(aside)  # before gigabytes are read
    try:
        reading = resources.train_templates() / "parts" / "trust.py"
        gathered = weights.gather(
            python,
            project=project,
            checkpoint=checkpoint,
            output=aside / MODEL,
            reading=reading,
            average=average,
            trust=trust,
        )
        if gathered.problem or gathered.different or not gathered.tensors:
            raise TrainwizError(_failed(gathered))
        _tell(gathered)
        _let_read(aside)
        return [(aside / name).rename(each) for name, each in targets.items() if (aside / name).exists()]
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _let_read(folder: Path) -> None:
    """Let everybody read the weights who may read what lies beside them: safetensors writes them for one user."""
    about = list(folder.rglob("*.json"))
    for file in folder.rglob("*.safetensors") if about else ():
        file.chmod(stat.S_IMODE(about[0].stat().st_mode))


def _layout(checkpoint: Path) -> str | None:
    layout = checkpoints.manifest(checkpoint).get("layout")
    return layout if isinstance(layout, str) else None


def _tell(gathered: Gathered) -> None:
    console.talk(
        t("written and read back: {size}, tensors: {n}", size=size(gathered.size_bytes), n=gathered.tensors),
        style="good",
    )
    if gathered.averaged:
        console.talk(
            t(
                "these are the averages of the weights (optimizer.ema_decay): {n}; for the last weights, use "
                "--last-weights",
                n=gathered.averaged,
            )
        )
    if not gathered.known:
        console.talk(
            t("the files use different tensor names than the model; the values were not compared"),
            style="warning",
        )


def _failed(gathered: Gathered) -> Message:
    if gathered.problem:
        return say("cannot gather the weights: {problem}", problem=gathered.problem)
    if gathered.different:
        names = ", ".join(gathered.different[:3])
        return say("tensors read back from the exported files differ from the checkpoint: {names}", names=names)
    return say("the task wrote no tensors; check save_model in task.py")
