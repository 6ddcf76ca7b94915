"""The checkpoints of a generated script: folders with a manifest that holds the hashes of their files."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.checkpoint import Checkpoint, State
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.outcome import Verified
from trainwiz.store import cache, runs

MANIFEST = "manifest.json"
KEY = Path("training-checkpoints", "signing.key")
"""In the user's state folder, readable only by that user. Generated scripts create it; they do not mention trainwiz."""
FOLDER = "checkpoints"
OUTPUT = "output"
"""The folder that train.py writes to when it is run by hand."""
NOTHING = Verified(files=1, read=1, damaged=(MANIFEST,))
"""The result for a checkpoint without a valid manifest."""
_CHUNK_BYTES = 1 << 20
_NAME = re.compile(r"checkpoint-(\d{8,})(\.tmp|\.removed|\.damaged-\d+)?")
_STATES = {"": State.COMPLETE, ".tmp": State.PARTIAL, ".removed": State.PARTIAL}


def every(folder: Path) -> tuple[Checkpoint, ...]:
    """All checkpoints in a folder by update, including partial and damaged ones."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if (match := _NAME.fullmatch(path.name)) and path.is_dir():
            found.append(_read(path, int(match[1]), _STATES.get(match[2] or "", State.DAMAGED)))
    return tuple(sorted(found, key=lambda each: (each.update, each.path)))


def folder_of(place: Path) -> Path:
    """The folder of checkpoints of a path: itself, that of a run, or that of a project's newest run with checkpoints.

    Raises `UsageError` if there are none.
    """
    made = [run.folder for run in reversed(runs.every(place))]
    for folder in (place, place / FOLDER, *(run / FOLDER for run in made), place / OUTPUT / FOLDER):
        if every(folder):
            return Path(os.path.realpath(folder))
    if not place.is_dir():
        raise UsageError(say("{folder} is not a folder", folder=place))
    raise UsageError(
        say("no checkpoints in {folder}", folder=place.absolute()),
        say("pass a project, a run folder or a checkpoint folder"),
    )


def is_one(folder: Path) -> bool:
    """Whether a folder is a checkpoint, perhaps a damaged one. A project may have a file of that name, too."""
    named = _NAME.fullmatch(files.resolved(folder).name) and (folder / MANIFEST).is_file()
    return bool(named) or "sha256" in manifest(folder)


def holds_any(folder: Path) -> bool:
    """Whether a folder is a checkpoint, or a folder of checkpoints."""
    return is_one(folder) or bool(every(folder))


def manifest(checkpoint: Path) -> Mapping[str, Any]:
    """The checkpoint's manifest: its update, layout, world and config, and the sizes and hashes of its files.

    Empty if it cannot be read, or was changed after it was written.
    """
    try:
        said = files.read_json(checkpoint / MANIFEST)
        own = said.pop("self", None)
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    # Sizes and the manifest's own hash came together; a manifest without both is an older one.
    return said if own == digest or (own is None and "bytes" not in said) else {}


# docs/decisions/checkpoints.md: A foreign checkpoint is reported, not refused
def is_own(checkpoint: Path) -> bool:
    """Whether this user's key signed the manifest; trust.py of the generated scripts makes key and signature."""
    said = dict(manifest(checkpoint))
    signed = said.pop("signed", None)
    try:
        key = files.read_bytes(cache.folder(variable="XDG_STATE_HOME", otherwise="~/.local/state").parent / KEY)
    except OSError:
        return False
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    ours = hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()
    return isinstance(signed, str) and hmac.compare_digest(ours.encode(), signed.encode(errors="replace"))


def verify(
    checkpoint: Path,
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[int], object] = lambda _: None,
) -> Verified | None:
    """Compare the files with the manifest, hashing for at most `seconds`. None if there is no manifest.

    `progress` is called with the number of bytes that were read since the last call.
    """
    if not (checkpoint / MANIFEST).exists():
        return None
    until = clock() + seconds
    hashes = manifest(checkpoint).get("sha256")
    if not isinstance(hashes, dict) or _is_of_another(checkpoint):
        return NOTHING
    # Only files in the folder are opened, whatever the manifest names.
    there = _files(checkpoint)
    read, damaged = 0, sorted(there - hashes.keys() - {MANIFEST})
    # The smallest first, so that as many as possible are read in the time.
    for name, digest in sorted(hashes.items(), key=lambda item: _size(checkpoint / item[0]) if item[0] in there else 0):
        try:
            found = _sha256(checkpoint / name, until, clock, progress) if name in there else ""
        except OSError:
            found = ""
        if found is None:
            break
        read += 1
        if found != digest:
            damaged.append(name)
    return Verified(files=len(hashes), read=read, damaged=tuple(damaged))


def _read(path: Path, update: int, state: State) -> Checkpoint:
    said = manifest(path)
    sizes = [_size(path / name) for name in _files(path)]
    changed = 0.0
    with contextlib.suppress(OSError):
        changed = (path / MANIFEST if said else path).stat().st_mtime
    world, layout = said.get("world"), said.get("layout")
    return Checkpoint(
        path=str(path),
        update=update,
        state=state,
        size_bytes=sum(size for size in sizes if size > 0),
        files=len(sizes),
        written=changed,
        layout=layout if isinstance(layout, str) else None,
        world=world if isinstance(world, int) else None,
    )


def size(checkpoint: Path) -> int:
    """The bytes of a checkpoint's files."""
    return sum(max(0, _size(checkpoint / name)) for name in _files(checkpoint))


def _is_of_another(checkpoint: Path) -> bool:
    named, said = _NAME.fullmatch(checkpoint.name), manifest(checkpoint).get("update")
    return named is not None and said is not None and said != int(named[1])


def _files(folder: Path) -> set[str]:
    """All that lies below a folder except folders. A link to one is no folder: an engine would follow it."""
    found = set()
    for where, folders, names in os.walk(folder):
        links = (name for name in folders if os.path.islink(os.path.join(where, name)))
        found |= {os.path.relpath(os.path.join(where, name), folder) for name in (*names, *links)}
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sha256(path: Path, until: float, clock: Callable[[], float], progress: Callable[[int], object]) -> str | None:
    digest = hashlib.sha256()
    with files.opened(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            if clock() > until:
                return None
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()
