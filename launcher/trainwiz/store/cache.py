"""What was found out before and is slow to find out again, in XDG_CACHE_HOME/trainwiz.

A cache may always be empty: unwritable folders and damaged files are treated as nothing remembered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEPT = 8
"""Entries per file: a person's interpreters, and the states of them that matter."""


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where trainwiz keeps what it can do without (https://specifications.freedesktop.org/basedir-spec)."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The specification: a relative path is invalid and to be ignored.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "trainwiz"


def recall(name: str, key: str, *, environ: Mapping[str, str] = os.environ) -> Any:
    """The value remembered under the key, None where there is none."""
    return _entries(folder(environ) / f"{name}.json").get(key)


def remember(name: str, key: str, value: Any, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Remember a JSON value; False where the cache cannot be written. Readers see the old file or the new one."""
    file = folder(environ) / f"{name}.json"
    # Writing is the rare case; reading comes before a person's first question.
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
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
