"""The programs that a rehearsal runs in the training's Python: checks of task.py, a small model, a watched rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz.process.capture import capture

SECONDS = 300.0
_INSIDE = Path(__file__).parent / "inside"
RANK = _INSIDE / "rehearsed_rank.py"
"""Runs train.py; its arguments are a file and then those of train.py."""
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "WANDB_MODE": "disabled"}


def look(
    python: str, folder: Path, *, values: Mapping[str, Any], planned: Mapping[str, Any], scale: float
) -> dict[str, Any]:
    """The facts about the project's task.py and schedule; `error` and `stage` say where it stopped, if it did."""
    asked = {"values": dict(values), "planned": dict(planned), "scale": scale}
    return _answer(python, "rehearsed_task.py", folder, json.dumps(asked), stage="import")


def small_model(python: str, folder: Path, *, name: str, auto_class: str, into: Path) -> dict[str, Any]:
    """Save a model of the same architecture with few layers into a folder; its `parameters`, or an `error`.

    `auto_class` names the class of transformers that makes it.
    """
    return _answer(python, "small_model.py", folder, name, auto_class, str(into), stage="model")


def _answer(python: str, program: str, folder: Path, *arguments: str, stage: str) -> dict[str, Any]:
    environ = {**os.environ, **CPU_ONLY, "PYTHONUNBUFFERED": "1"}
    ended = capture([python, str(_INSIDE / program), *arguments], timeout=SECONDS, env=environ, cwd=str(folder))
    return ended.answer or {"stage": stage, "error": {"what": ended.problem, "where": ""}}
