"""The manifest of a checkpoint: the size and sha256 of every file.

They are compared before anything is loaded, and a file that is not in the manifest is never loaded.
"""

from __future__ import annotations

import hashlib
import json

# feature: selected
import math

# end: selected
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trust import digest_of, others_in

MANIFEST = "manifest.json"
LARGEST = 16 << 20
"""The most bytes of a manifest; thousands of files take about 1 MiB."""
# feature: selected
KEPT = "kept.json"  # what the loop keeps besides the engine's state
# end: selected


def update_of(path: Path) -> int:
    """Return the update in a checkpoint's name."""
    return int(path.name.removeprefix("checkpoint-"))


def read_json(file: Path) -> Any:
    """Return the value in a small JSON file; a large one from a stranger could fill the memory."""
    if file.stat().st_size > LARGEST:
        raise OSError(f"larger than {LARGEST >> 20} MiB")
    return json.loads(file.read_text())


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest. Raises an error if it was changed, belongs to another checkpoint or is not one."""
    if MANIFEST in others_in(path):
        raise OSError("not a regular file")
    manifest = read_json(path / MANIFEST)
    if manifest.pop("self") != digest_of(manifest):
        raise ValueError("changed since it was written")
    if manifest["update"] != update_of(path):
        raise ValueError(f"of update {manifest['update']}")
    if manifest["bytes"].keys() != manifest["sha256"].keys() or not isinstance(manifest["config"], dict):
        raise ValueError("of another form")
    return manifest


# feature: selected
def read_kept(path: Path) -> dict[str, Any]:
    """Return what the loop kept in a checkpoint; nothing if it kept nothing."""
    kept = read_json(path / KEPT) if (path / KEPT).exists() else {}
    counts = [kept.get(name, 0) for name in ("evaluated", "best_update", "waited")]
    best = kept.get("best")
    if not all(type(count) is int and count >= 0 for count in counts) or not (best is None or math.isfinite(best)):
        raise ValueError(f"{path / KEPT} is of another form")
    return kept


# end: selected
def damage_in(path: Path, hashes: dict[str, str] | None = None) -> list[str]:
    """Return the differences from the manifest: in names and sizes, and in contents if `hashes` is given."""
    try:
        manifest = read_manifest(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return [f"{MANIFEST}: {type(error).__name__} {error}"]
    sizes, found = manifest["bytes"], {name: (path / name).stat().st_size for name in files_in(path)}
    damage = [f"{name}: not in the manifest" for name in found.keys() - sizes.keys() - {MANIFEST}]
    damage += [f"{name}: missing" for name in sizes.keys() - found.keys()]
    damage += [f"{name}: neither a file nor a folder" for name in others_in(path)]
    damage += [f"{n}: {found[n]} bytes, not {sizes[n]}" for n in sizes.keys() & found.keys() if found[n] != sizes[n]]
    if damage or hashes is None:
        return sorted(damage)
    hashes = hash_files(path, [name for name in sizes if name not in hashes]) | hashes
    return [f"{name}: changed" for name in sizes if hashes[name] != manifest["sha256"][name]]


def files_in(folder: Path) -> list[str]:
    """Return the names of all files below a folder, largest first."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p.relative_to(folder)) for p in sorted(files, key=lambda p: (-p.stat().st_size, p))]


def hash_files(folder: Path, names: list[str]) -> dict[str, str]:
    """Sync and hash those of the files that exist, several at a time. Return the sha256 by name."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        there = [name for name in names if (folder / name).exists()]
        return dict(zip(there, pool.map(lambda name: sha256(folder / name), there), strict=True))


def sha256(path: Path) -> str:
    """Sync a file and return its hash."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
