"""Remembered results of slow probes, in XDG_CACHE_HOME/trainwiz.

The cache may always be empty; unwritable folders and damaged files count as an empty cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz import files

KEPT = 8
"""Entries per file, such as the interpreters of one user."""


def folder(
    environ: Mapping[str, str] = os.environ, *, variable: str = "XDG_CACHE_HOME", otherwise: str = "~/.cache"
) -> Path:
    """trainwiz's folder of the cache, or of another kind (https://specifications.freedesktop.org/basedir-spec)."""
    base = environ.get(variable, "")
    # The specification requires that relative paths are ignored.
    return Path(base if os.path.isabs(base) else os.path.expanduser(otherwise)) / "trainwiz"


def recall(name: str, key: str, *, environ: Mapping[str, str] = os.environ) -> Any:
    """The value remembered under a key; None if there is none."""
    return _entries(folder(environ) / f"{name}.json").get(key)


def every(name: str, *, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """All values that are remembered under this name, by key."""
    return _entries(folder(environ) / f"{name}.json")


def remember(name: str, key: str, value: Any, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Remember a JSON value; False if the cache cannot be written. The file is replaced atomically."""
    file = folder(environ) / f"{name}.json"
    # Writing is rare, and reading must be fast: it comes before the first question.
    from trainwiz.errors import TrainwizError
    from trainwiz.store.atomic import write

    entries = {k: v for k, v in _entries(file).items() if k != key}
    entries = {**dict(list(entries.items())[1 - KEPT :]), key: value}
    try:
        write(file, json.dumps(entries))
    except TrainwizError:
        return False
    return True


def _entries(file: Path) -> dict[str, Any]:
    try:
        entries = files.read_json(file)
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
