"""Writing a project's files: atomically, and never over a person's edits without asking.

`.trainwiz/manifest.json` holds the sha256 of each file as it was generated. An unchanged file is updated silently; any
other difference is a conflict, which the caller resolves with a diff at hand.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from trainwiz import files
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.render.artifact import Artifact
from trainwiz.store import atomic

MANIFEST = ".trainwiz/manifest.json"
_FORMAT = 1

Choice = Literal["keep", "overwrite", "beside"]
"""What to do with a file that a person edited: leave it, replace it, or write the new one beside it as .new."""


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A file that differs from what is to be written, and from what was generated before."""

    path: str
    """Relative to the project's folder."""
    diff: str
    """Unified, from the file as it is to the new text."""
    foreign: bool
    """Whether trainwiz never wrote this file."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What `write` did with each file, as paths relative to the project's folder."""

    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Files with conflicts that were left as they are."""
    beside: tuple[str, ...] = ()
    """New `.new` files beside such files."""
    removed: tuple[str, ...] = ()
    """Unchanged files that are no longer needed."""


def write(
    folder: str | Path,
    artifacts: Sequence[Artifact],
    resolve: Callable[[Conflict], Choice],
    *,
    partial: bool = False,
) -> Written:
    """Write the artifacts below `folder`: all of them, or none on an error.

    Every conflict is resolved before anything is written. Generated files that are no longer needed are removed unless
    they were edited; with `partial` only the artifacts themselves are touched. Raises `TrainwizError`.
    """
    root = Path(folder)
    remembered = _manifest(root)
    done: dict[str, list[str]] = {name: [] for name in Written.__dataclass_fields__}
    texts: dict[str, str] = {}
    for artifact in artifacts:
        _check(root, artifact.path)
        outcome = _outcome(root, artifact, remembered, resolve)
        target = f"{artifact.path}.new" if outcome == "beside" else artifact.path
        done[outcome].append(target)
        if outcome in ("written", "beside"):
            texts[target] = artifact.text
    manifest = {a.path: _sha256(a.text.encode()) for a in artifacts}
    if partial:
        manifest = remembered | manifest
    else:
        done["removed"] = [p for p in remembered if p not in manifest and _is_as_generated(root, p, remembered)]
    texts[MANIFEST] = json.dumps({"version": _FORMAT, "files": dict(sorted(manifest.items()))}, indent=2) + "\n"
    atomic.write_all(root, texts)
    for path in done["removed"]:
        atomic.remove(root / path)
    return Written(**{name: tuple(paths) for name, paths in done.items()})


def conflicts(folder: str | Path, artifacts: Sequence[Artifact]) -> tuple[Conflict, ...]:
    """The conflicts that `write` would ask about. Nothing is written. Raises `TrainwizError`."""
    root = Path(folder)
    remembered = _manifest(root)
    found: list[Conflict] = []

    def note(conflict: Conflict) -> Choice:
        found.append(conflict)
        return "keep"

    for artifact in artifacts:
        _check(root, artifact.path)
        _outcome(root, artifact, remembered, note)
    return tuple(found)


def changed(folder: str | Path) -> tuple[str, ...]:
    """Generated files that were edited or deleted."""
    root = Path(folder)
    remembered = _manifest(root)
    return tuple(path for path in remembered if not _is_as_generated(root, path, remembered))


# docs/decisions/launching.md: Files are stale only if the plan was edited
def outdated(folder: str | Path, artifacts: Sequence[Artifact]) -> tuple[str, ...]:
    """The artifacts that were generated before and would now be generated differently."""
    root = Path(folder)
    remembered = _manifest(root)
    wanted = {a.path: _sha256(a.text.encode()) for a in artifacts}
    return tuple(
        path
        for path, digest in wanted.items()
        if remembered.get(path, digest) != digest and not _is_as_generated(root, path, wanted)
    )


def _outcome(root: Path, artifact: Artifact, remembered: dict[str, str], resolve: Callable[[Conflict], Choice]) -> str:
    path = root / artifact.path
    if not path.exists():
        return "written"
    present = _bytes(path)
    if present == artifact.text.encode():
        return "unchanged"
    if _sha256(present) == remembered.get(artifact.path):
        return "written"
    choice = resolve(
        Conflict(
            path=artifact.path,
            diff=_diff(artifact.path, present.decode("utf-8", "replace"), artifact.text),
            foreign=artifact.path not in remembered,
        )
    )
    return {"keep": "kept", "overwrite": "written", "beside": "beside"}[choice]


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"{path} (as it is)", f"{path} (new)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _check(root: Path, relative: str) -> None:
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise ValueError(f"an artifact's path must stay inside the project: {relative!r}")
    path = root / relative
    if path.is_symlink():
        raise UsageError(
            say("{path} is a symbolic link to {target}; nothing was written", path=path, target=path.readlink()),
            say("remove the link, or choose another folder"),
        )
    if path.is_dir():
        raise UsageError(
            say("{path} is a folder, but a file must be written there; nothing was written", path=path),
            say("move it, or choose another folder"),
        )


def _manifest(root: Path) -> dict[str, str]:
    # Without a readable manifest each file is a conflict, so that nothing is lost.
    try:
        known = files.read_json(root / MANIFEST)["files"]
        return {str(path): str(digest) for path, digest in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_as_generated(root: Path, path: str, remembered: dict[str, str]) -> bool:
    try:
        return _sha256((root / path).read_bytes()) == remembered[path]
    except OSError:
        return False


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            say("{path} exists but cannot be read: {problem}", path=path, problem=error.strerror)
        ) from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
