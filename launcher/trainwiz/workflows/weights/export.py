"""`trainwiz export`: write a checkpoint's weights whole for `from_pretrained`, and what other programs need of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from trainwiz.errors import Ended
from trainwiz.probe import interpreter
from trainwiz.store import checkpoints
from trainwiz.ui import console
from trainwiz.workflows.weights import gathered, gguf, hub, serving
from trainwiz.workflows.weights.gathered import MERGED, MODEL


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is exported, and where to."""

    folder: str
    """A project, a run folder or a checkpoint folder."""
    update: int | None = None
    """The update whose checkpoint is exported; None takes the newest."""
    output: str | None = None
    """The folder that is written; None: `exported/` in the project."""
    python: str | None = None
    """The interpreter that runs the training; None: the one that runs trainwiz."""
    average: bool = True
    """Write the average of the weights where the training keeps one, as the training itself does at its end."""
    trust: bool = False
    """Also unpickle classes that are not known, which could run any code."""
    gguf: str | None = None
    """The type of the GGUF file that llama.cpp's converter writes (auto, bf16, f16, q8_0, …); None: no such file."""
    repository: str | None = None
    """The repository of the Hugging Face hub to upload the model to, `ORG/NAME`; None: nothing leaves the machine."""
    public: bool = False
    """Whether a repository that is made for it can be read by everybody."""
    json: bool = False
    """Print what was written as JSON."""


def export(request: Request) -> None:
    """Verify the checkpoint, gather its weights, write them, and read them back."""
    if request.repository:
        hub.check_name(request.repository)
    place = Path(request.folder)
    checkpoint, project = gathered.located(place, request.update)
    if checkpoints.is_one(place):  # of several, only an intact one is chosen
        gathered.refuse_damaged(checkpoint)
    targets = gathered.targets_of(Path(request.output) if request.output else project / "exported" / checkpoint.name)
    converter = gguf.converter_for(request.gguf, gguf.file_of(targets)) if request.gguf else None
    python = interpreter.located(request.python or sys.executable)
    written = gathered.gather(python, project, checkpoint, targets, average=request.average, trust=request.trust)
    if converter and request.gguf:
        written.append(gguf.convert(python, converter, targets, request.gguf))
    if not request.json:
        for each in written:
            console.data(str(each))
    serving.show(targets[MODEL], targets[MERGED])
    url = _uploaded(python, targets[MODEL], request)
    if request.json:
        # When all is done: a program reads a single value, and an upload that fails is an exit code.
        names = [str(each) for each in written]
        serve = serving.command(targets[MODEL], targets[MERGED])
        console.data_json({"checkpoint": str(checkpoint), "written": names, "serve": serve, "uploaded": url})


def _uploaded(python: str, folder: Path, request: Request) -> str | None:
    """Where the model is on the hub; None where nobody asked for it."""
    if not request.repository:
        return None
    try:
        return hub.push(python, folder, request.repository, public=request.public)
    except Ended as ended:
        hub.ended(ended, folder)
        raise
