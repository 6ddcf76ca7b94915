"""`.trainwiz/manifest.json`: what was generated, so that a user's edits can be recognized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from trainwiz import files

MANIFEST = ".trainwiz/manifest.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was generated, by path relative to the project's folder."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The sha256 of each file as it was generated."""
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The values in it: the defaults of its `Config`, by name."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """The sha256 of a file that was kept while the plan changed more than values in it."""

    def text(self) -> str:
        """The file's content."""
        kept = {"kept": dict(sorted(self.kept.items()))} if self.kept else {}
        record = {"version": _FORMAT, "files": dict(sorted(self.files.items())), "values": dict(self.values), **kept}
        return json.dumps(record, indent=2) + "\n"


def read(root: Path) -> Manifest:
    """The manifest of a project; an empty one if there is none that can be read."""
    # Without a readable manifest each file is a conflict, so that nothing is lost.
    try:
        record = files.read_json(root / MANIFEST)
        return Manifest(
            files={path: str(digest) for path, digest in record["files"].items() if _is_below(path)},
            values={path: dict(values) for path, values in record.get("values", {}).items() if _is_below(path)},
            kept={path: str(digest) for path, digest in record.get("kept", {}).items() if _is_below(path)},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Manifest()


def _is_below(path: str) -> bool:
    """Whether a name is that of a file below the project's folder: a stranger's project may name any file."""
    return not PurePath(path).is_absolute() and ".." not in PurePath(path).parts


def digest_of(path: Path) -> str | None:
    """The sha256 of a file; None if it cannot be read."""
    try:
        return sha256(files.read_bytes(path))
    except OSError:
        return None


def sha256(data: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(data).hexdigest()
