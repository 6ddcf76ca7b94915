"""A GGUF file for llama.cpp and what is built on it, written by llama.cpp's own converter where it is installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.process import foreground
from trainwiz.ui import console
from trainwiz.workflows.weights.gathered import MERGED, MODEL
from trainwiz.workflows.weights.serving import beyond_lora

TYPES = ("auto", "f32", "f16", "bf16", "q8_0")
"""What the converter writes; smaller types are made by `llama-quantize` from its file."""
CONVERTER = "convert_hf_to_gguf.py"
_OF_ADAPTERS = "convert_lora_to_gguf.py"
_ADAPTER = "adapter_config.json"
_FOLDER = "LLAMA_CPP"
"""The variable that names a checkout of llama.cpp."""


def file_of(targets: Mapping[str, Path]) -> Path:
    """The GGUF file beside an exported folder."""
    return targets[MODEL].with_name(f"{targets[MODEL].name}.gguf")


def converter_for(kind: str, file: Path) -> Path:
    """llama.cpp's converter. Raises `UsageError` for an unknown type, where none is installed, and if `file` exists."""
    if os.path.lexists(file):
        raise UsageError(
            say("{folder} already exists; nothing was written", folder=file),
            say("export to another folder: the same command with --output DIR"),
        )
    if kind not in TYPES:
        raise UsageError(
            say("--gguf must be one of {types}, not {kind}", types=", ".join(TYPES), kind=kind),
            say("smaller types: export --gguf bf16, then llama-quantize"),
        )
    places = [Path(folder, CONVERTER) for folder in (os.environ.get(_FOLDER, ""), "llama.cpp") if folder]
    found = next((str(place) for place in places if place.is_file()), shutil.which(CONVERTER))
    if found is None:
        raise UsageError(
            say("{converter} of llama.cpp was not found; nothing was written", converter=CONVERTER),
            say(
                "git clone https://github.com/ggml-org/llama.cpp, install its requirements.txt, and run with "
                "LLAMA_CPP=llama.cpp"
            ),
        )
    return Path(found).absolute()


def convert(python: str, converter: Path, targets: Mapping[str, Path], kind: str) -> Path:
    """Write the GGUF file beside the exported folder: of the merged model where there is one."""
    folder = next(each for each in (targets[MERGED], targets[MODEL]) if each.is_dir())
    program, base = converter, []
    if why := beyond_lora(folder):
        raise UsageError(
            say("llama.cpp converts no such adapter: {why}; the adapter itself is in {folder}", why=why, folder=folder),
            say("set model.merge_adapter to true and export again: the merged model is converted then"),
        )
    if (folder / _ADAPTER).is_file():
        program, base = converter.with_name(_OF_ADAPTERS), _base(folder)
    file = file_of(targets)
    argv = [python, str(program), str(folder.absolute()), "--outfile", str(file.absolute()), "--outtype", kind, *base]
    console.talk(t("converting to GGUF with {program}", program=program))
    code, _ = foreground.run(argv, cwd=str(folder), environ=os.environ)
    if code or not file.is_file():
        raise TrainwizError(
            say("{program} ended with exit code {code}; its output is above", program=program.name, code=code),
            say(
                "the model is in {folder}; packages that it lacks are in its requirements.txt; then: {command}",
                folder=folder,
                command=shlex.join(argv),
            ),
        )
    return file


def _base(folder: Path) -> list[str]:
    """What tells the converter of an adapter where its base model is: it takes any name for one of the hub."""
    name = json.loads((folder / _ADAPTER).read_text("utf-8")).get("base_model_name_or_path")
    base = folder / str(name or "")
    return ["--base", str(base.absolute())] if name and base.is_dir() else []
