"""The files of a project as a run used them: kept once by content, so that the run can be repeated.

`runs/.files/<sha256>` holds each text; `command.json` of a run holds the digests by path.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainwiz import files
from trainwiz.record import redaction
from trainwiz.render import PLAN_FILE
from trainwiz.store import runs
from trainwiz.store.manifest import sha256
from trainwiz.store.runs import RUNS

KEPT = f"{RUNS}/.files"
_OUTPUTS = frozenset({RUNS, "output", "exported", "__pycache__"})
_SETTINGS = frozenset({PLAN_FILE, "accelerate.yaml", "ds_config.json", "requirements.txt"})
_APART = ("pyvenv.cfg", PLAN_FILE)
"""Files that mark a folder as separate: an environment, or another project."""
_MOST_BYTES = 1 << 20
_MOST_FILES = 200
_MOST_ENTRIES = 2000
"""Of all folders together: data may lie beside the code, in any number of files."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What of a project is code or settings."""

    digests: Mapping[str, str]
    """The sha256 of each file, by path relative to the project."""
    whole: bool
    """Whether all of the project was looked at."""


def look(project: Path) -> Found:
    """The project's files as they are now."""
    texts, whole = _texts(project)
    return Found(digests={path: sha256(text) for path, text in texts.items()}, whole=whole)


def keep(project: Path, secrets: frozenset[str]) -> Found:
    """The same, and keep each text that is not kept yet and holds no secret."""
    texts, whole = _texts(project)
    digests = {path: sha256(text) for path, text in texts.items()}
    # The training matters more than these copies.
    with contextlib.suppress(OSError):
        folder = project / KEPT
        runs.make_private(folder, exist_ok=True)
        for path, text in texts.items():
            target = folder / digests[path]
            if not target.exists() and _is_free_of_secrets(text, secrets):
                aside = target.with_name(f".{target.name}.{os.getpid()}")
                aside.write_bytes(text)
                os.replace(aside, target)
    return Found(digests=digests, whole=whole)


def kept(project: Path, digest: str) -> bytes | None:
    """The text with this digest; None if it was not kept, or is damaged."""
    return _with_digest(project / KEPT / digest, digest)


def present(project: Path, path: str, digest: str) -> bytes | None:
    """The project's own file, if it still has this digest."""
    return _with_digest(project / path, digest)


def _with_digest(file: Path, digest: str) -> bytes | None:
    with contextlib.suppress(OSError):
        text = files.read_bytes(file, _MOST_BYTES)
        return text if sha256(text) == digest else None
    return None


def _is_free_of_secrets(text: bytes, secrets: frozenset[str]) -> bool:
    words = text.decode(errors="replace")
    return redaction.text(words, secrets) == words


def _texts(project: Path) -> tuple[dict[str, bytes], bool]:
    found: dict[str, bytes] = {}
    for entry in _entries(project):
        if entry is None or len(found) == _MOST_FILES:
            return dict(sorted(found.items())), False
        with contextlib.suppress(OSError):
            found[os.path.relpath(entry, project)] = files.read_bytes(entry, _MOST_BYTES)
    return dict(sorted(found.items())), True


def _entries(project: Path) -> Iterator[str | None]:
    """The files with code or settings, those of the upper folders first; None where too much lies there."""
    folders, seen = deque([str(project)]), 0
    while folders:
        try:
            entries = sorted(os.scandir(folders.popleft()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MOST_ENTRIES:
                yield None
                return
            if entry.is_dir(follow_symlinks=False):
                hidden = entry.name.startswith(".") or entry.name in _OUTPUTS
                if not hidden and not any(os.path.exists(os.path.join(entry.path, mark)) for mark in _APART):
                    folders.append(entry.path)
            elif entry.name.endswith(".py") or (
                entry.name in _SETTINGS and os.path.dirname(entry.path) == str(project)
            ):
                yield entry.path
