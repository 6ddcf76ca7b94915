"""Answers that outlive their session: those of an interrupted wizard, and those that a project was made from.

An interrupted wizard's lie in XDG_STATE_HOME/trainwiz, by folder; a project's in its `.trainwiz/answers.json`, with the
plan as it was written, so that a value edited by hand is told from one that was never touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.store import atomic

PROJECT_FILE = ".trainwiz/answers.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Answers by dotted key; `step` is the question that comes next, `plan` the values as they were written."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    step: str = ""
    advanced: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)


def session_file(folder: str | Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Where an interrupted wizard for this folder keeps its answers."""
    base = environ.get("XDG_STATE_HOME", "")
    # The specification: a relative path is invalid and to be ignored.
    root = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.local/state"))
    name = hashlib.sha256(os.path.realpath(folder).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return root / "trainwiz" / f"init-{name}.json"


def write(path: Path, saved: Saved) -> bool:
    """Keep answers in a file; False where that is impossible, which must not stop anybody from answering."""
    values = {"answers": dict(saved.answers), "step": saved.step, "advanced": saved.advanced, "plan": dict(saved.plan)}
    try:
        atomic.write_all(path.parent, {path.name: json.dumps(values, indent=2, ensure_ascii=False) + "\n"})
    except TrainwizError:
        return False
    return True


def read(path: Path) -> Saved | None:
    """The answers in a file; None where there are none, or none that can be read."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Saved(
            answers={str(k): v for k, v in values["answers"].items()},
            step=str(values.get("step", "")),
            advanced=bool(values.get("advanced")),
            plan={str(k): v for k, v in values.get("plan", {}).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def forget(path: Path) -> None:
    """Remove an interrupted wizard's answers."""
    with contextlib.suppress(OSError):
        path.unlink()
