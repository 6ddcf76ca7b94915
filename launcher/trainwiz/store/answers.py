"""Saved answers: those of an interrupted wizard, and those from which a project was made.

An interrupted wizard's are in XDG_STATE_HOME/trainwiz, one file per folder. A project's are in
`.trainwiz/answers.json`, with the plan as it was written, which shows the values that were edited by hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.errors import TrainwizError
from trainwiz.store import atomic, cache

PROJECT_FILE = ".trainwiz/answers.json"
_CHINESE = re.compile(r"^# .*[\u4e00-\u9fff]", re.MULTILINE)
"""A heading of the generated README.md."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The contents of a file of answers."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key."""
    step: str = ""
    """The key of the next question."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The values of the plan as they were written."""
    folder: str = ""
    """The project's folder, of an interrupted wizard."""
    language: str = ""
    """The language of the project's files, or the one that was typed for an interrupted wizard: en or zh."""
    gpus: str = ""
    """The GPUs that a project was made for where they were not those of the machine that made it: 8xH100."""
    options: Mapping[str, str | bool] = field(default_factory=dict)
    """Options of its command line that are not answers, by the names of the request's fields."""
    given: tuple[str, ...] = ()
    """Keys of the answers that its command line gave, which are never asked."""


def session_file(folder: str | Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The file with the answers of an interrupted wizard for this folder."""
    name = hashlib.sha256(os.path.realpath(folder).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return _root(environ) / f"init-{name}.json"


def newest(environ: Mapping[str, str] = os.environ) -> Saved | None:
    """The answers of the wizard that was interrupted last, of any folder; None if there are none."""
    sessions = []
    for path in _root(environ).glob("init-*.json"):
        with contextlib.suppress(OSError):
            sessions.append((path.stat().st_mtime_ns, path))
    found = (read(path) for _, path in sorted(sessions, reverse=True))
    return next((saved for saved in found if saved and saved.folder), None)


def _root(environ: Mapping[str, str]) -> Path:
    return cache.folder(environ, variable="XDG_STATE_HOME", otherwise="~/.local/state")


def write(path: Path, saved: Saved) -> bool:
    """Save answers; False if that failed, which must not interrupt the wizard."""
    values: dict[str, Any] = {
        "answers": dict(saved.answers),
        "step": saved.step,
        "plan": dict(saved.plan),
    }
    if saved.language:
        values["language"] = saved.language
    if saved.gpus:
        values["gpus"] = saved.gpus
    if saved.folder:
        values |= {"folder": saved.folder, "options": dict(saved.options), "given": list(saved.given)}
    try:
        atomic.write_all(path.parent, {path.name: json.dumps(values, indent=2, ensure_ascii=False) + "\n"})
    except TrainwizError:
        return False
    return True


def read(path: Path) -> Saved | None:
    """The answers in a file; None if it is missing or cannot be read."""
    try:
        values = files.read_json(path)
        return Saved(
            answers={str(k): v for k, v in values["answers"].items()},
            step=str(values.get("step", "")),
            plan={str(k): v for k, v in values.get("plan", {}).items()},
            folder=str(values.get("folder", "")),
            language=str(values.get("language", "")),
            gpus=str(values.get("gpus", "")),
            options={str(k): v for k, v in values.get("options", {}).items() if isinstance(v, str | bool)},
            given=tuple(str(k) for k in values.get("given", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def language_of(folder: Path) -> str:
    """The language of a project's files; empty where that is not known."""
    saved = read(folder / PROJECT_FILE)
    if saved is None or saved.language:
        return saved.language if saved else ""
    # An older trainwiz did not save it.
    for readme in (folder / ".trainwiz" / "base" / "README.md", folder / "README.md"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return "zh" if _CHINESE.search(files.read_text(readme)) else "en"
    return ""


def gpus_of(folder: Path) -> str:
    """The GPUs that a project was made for on another machine: 8xH100; empty where that is not known."""
    saved = read(folder / PROJECT_FILE)
    return saved.gpus if saved else ""


def forget(path: Path) -> None:
    """Remove a file of answers."""
    with contextlib.suppress(OSError):
        path.unlink()
