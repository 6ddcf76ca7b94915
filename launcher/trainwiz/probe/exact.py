"""One update of a project on tensors without memory, in the training's Python."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz.probe.rehearsal import CPU_ONLY
from trainwiz.process.capture import capture

SECONDS = 600.0
"""A model of a few billion parameters takes ten; one with layers of many kinds has all of them tried."""
_PROGRAM = Path(__file__).parent / "inside" / "one_update.py"


def run(python: str, folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The program's result; `error` and `stage` say where it stopped, if it did."""
    environ = {**os.environ, **CPU_ONLY, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    del environ["ACCELERATE_USE_CPU"]  # would turn sharding off
    argv = [python, str(_PROGRAM), json.dumps(asked)]
    ended = capture(argv, timeout=SECONDS, env=environ, cwd=str(folder))
    return ended.answer or {"stage": "train", "error": {"what": ended.problem, "where": "", "missing": None}}
