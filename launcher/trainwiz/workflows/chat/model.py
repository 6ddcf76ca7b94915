"""The folder of the model that is meant, gathered from a checkpoint if the training has not written it."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from trainwiz import files
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.probe import interpreter, untrusted_model
from trainwiz.store import checkpoints, history, liveness, models, runs
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows.weights import gathered

_FINAL = "model"
"""The folder that a finished training writes its model to."""
_KEPT = "exported"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which model answers, and where."""

    target: str = runs.LATEST
    """A run, a project, a checkpoint's folder, or a folder that `from_pretrained` loads."""
    update: int | None = None
    """The update whose checkpoint answers; None: the finished model, else the newest checkpoint."""
    average: bool = True
    """Take the average of the weights where the training keeps one."""
    cpu: bool = False
    """Do not use the GPUs."""
    python: str | None = None
    """The interpreter that runs the training; None: the one that runs trainwiz."""
    trust: bool = False
    """Also unpickle classes that are not known."""


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """A model's folder, and how it is loaded."""

    folder: Path
    """With config.json and weights."""
    cwd: Path
    """Where relative names of base models begin."""
    device: str
    """`auto` or `cpu`."""


def found(wanted: Wanted) -> Answerer:
    """The model's folder. Raises `UsageError` where there is none that writes text."""
    place = Path() if wanted.target == runs.LATEST else Path(wanted.target)
    if wanted.update is None and models.is_model(place):
        return _checked(place, place, wanted.cpu)
    if os.sep in str(place) and not place.exists():
        raise UsageError(say("{folder} does not exist", folder=place))
    if not _holds_checkpoints(place):
        run = _answering(history.find(str(place)), place)
        busy = not run.read("outcome") and liveness.is_running(run.read("command")) is True
        if busy and not wanted.cpu:
            console.talk(t("run {name} is still training, so its GPUs are not used", name=run.name))
        final = run.folder / _FINAL
        if wanted.update is None and wanted.average and models.is_model(final):
            return _checked(final, run.folder.parent.parent, wanted.cpu or busy)
        place, wanted_cpu = run.folder, wanted.cpu or busy
    else:
        wanted_cpu = wanted.cpu
        final = place / checkpoints.OUTPUT / _FINAL
        if wanted.update is None and wanted.average and models.is_model(final):
            return _checked(final, place, wanted.cpu)
    return _gathered(place, wanted, wanted_cpu)


def _answering(newest: Run, place: Path) -> Run:
    """Of a project, the newest run that has something to load: one that failed early has nothing."""
    made = (
        [newest]
        if files.resolved(newest.folder) == files.resolved(place)
        else reversed(runs.every(newest.folder.parent.parent))
    )
    run = next((run for run in made if models.is_model(run.folder / _FINAL) or run.complete()), newest)
    if run.name != newest.name:
        console.talk(t("run {newest} has no checkpoint; this is run {name}", newest=newest.name, name=run.name))
    return run


def _holds_checkpoints(place: Path) -> bool:
    """Whether it is a checkpoint, a folder of them, or a project that was trained by hand only."""
    if checkpoints.holds_any(place):
        return True
    return not runs.every(place) and (place / checkpoints.OUTPUT).is_dir()


def _gathered(place: Path, wanted: Wanted, cpu: bool) -> Answerer:
    """The checkpoint's weights as a model, kept beside the checkpoints for the next time."""
    checkpoint, project = gathered.located(place, wanted.update)
    kind = "" if wanted.average else "-last"
    # A name for what the checkpoint holds: another training may write another one of the same update.
    digest = hashlib.sha256(files.read_bytes(checkpoint / checkpoints.MANIFEST)).hexdigest()[:8]
    target = checkpoint.parent.parent / _KEPT / f"{checkpoint.name}-{digest}{kind}"
    if not models.is_model(target):
        if checkpoints.is_one(place):  # of several, only an intact one is chosen
            gathered.refuse_damaged(checkpoint)
        python = interpreter.located(wanted.python or sys.executable)
        gathered.gather(
            python,
            project,
            checkpoint,
            gathered.targets_of(target),
            average=wanted.average,
            trust=wanted.trust,
        )
        console.talk(t("kept for next time: {folder}", folder=os.path.relpath(target)))
    return _checked(target, project, cpu)


def _checked(folder: Path, cwd: Path, cpu: bool) -> Answerer:
    if not models.writes_text(folder):
        raise UsageError(
            say(
                "the model in {folder} does not generate text: {classes}",
                folder=folder,
                classes=", ".join(models.classes(folder)) or t("its config.json does not name a model class"),
            ),
            say("chat and sample are for the tasks causal_lm, sft and preference"),
        )
    base = Path(str(models.adapter(folder).get("base_model_name_or_path", "")) or folder)
    for place in (folder, cwd / base):
        if place.is_dir() and (problem := untrusted_model.problem(place)):
            raise TrainwizError(
                say("the model in {folder} was not loaded: {problem}", folder=place, problem=problem),
                say("ask its author for a folder written by save_pretrained"),
            )
    return Answerer(folder=files.resolved(folder), cwd=files.resolved(cwd), device="cpu" if cpu else "auto")
