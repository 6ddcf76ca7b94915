"""The hub's local cache of downloaded models and datasets."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from trainwiz.probe.first_rows import COMPRESSED, SAME, TABLES

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


_TRUE = {"1", "ON", "YES", "TRUE"}


def cache_home(environ: Mapping[str, str]) -> Path:
    """The folder that the caches of all libraries are in by default."""
    return Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def hub_home(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps its files."""
    return Path(environ.get("HF_HOME") or cache_home(environ) / "huggingface")


def offline(environ: Mapping[str, str]) -> str | None:
    """The variable that forbids access to the hub; None if none does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in names if environ.get(name, "").upper() in _TRUE), None)


def has_token(environ: Mapping[str, str]) -> bool:
    """Whether huggingface_hub finds an access token: in the environment, or where `hf auth login` leaves it."""
    if any(environ.get(name, "").strip() for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")):
        return True
    file = Path(environ.get("HF_TOKEN_PATH") or hub_home(environ) / "token").expanduser()
    with contextlib.suppress(OSError):
        return file.stat().st_size > 0
    return False


class HubCache:
    """The folder of huggingface_hub: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.folder = Path(environ.get("HF_HUB_CACHE") or hub_home(environ) / "hub").expanduser()

    def holds(self, kind: str, name: str) -> bool:
        """Whether it has a snapshot of `name`; `kind` is models or datasets."""
        with contextlib.suppress(OSError):
            return any(self._snapshots(kind, name).iterdir())
        return False

    def file(self, kind: str, name: str, path: str) -> Path | None:
        """A file from the newest snapshot that has it; None if none has."""
        if not _ID.fullmatch(name) and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            return None
        with contextlib.suppress(OSError):
            snapshots = self._snapshots(kind, name).iterdir()
            found = [there for snapshot in snapshots if (there := snapshot / path).is_file()]
            return max(found, key=lambda file: file.stat().st_mtime, default=None)
        return None

    def files(self, kind: str, name: str, pattern: str) -> list[Path]:
        """The files of the newest snapshot with a config.json whose names match a pattern."""
        config = self.file(kind, name, "config.json")
        with contextlib.suppress(OSError):
            return sorted(config.parent.glob(pattern)) if config else []
        return []

    def _snapshots(self, kind: str, name: str) -> Path:
        return self.folder / f"{kind}--{name.replace('/', '--')}" / "snapshots"


def is_hub_id(name: str, root: Path) -> bool:
    """Whether the name has the form organization/name and is not a path below an existing folder."""
    if not _ID.fullmatch(name) or name.endswith((*TABLES, *SAME, *COMPRESSED, ".txt")):
        return False
    return not (root / name.partition("/")[0]).is_dir()
