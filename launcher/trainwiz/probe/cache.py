"""The hub's local cache of downloaded models and data sets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class HubCache:
    """The folder of huggingface_hub: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        home = environ.get("HF_HOME") or os.path.join(
            environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
        )
        self.folder = Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()

    def holds(self, kind: str, name: str) -> bool:
        """Whether it has a snapshot of `name`; `kind` is models or datasets."""
        snapshots = self.folder / f"{kind}--{name.replace('/', '--')}" / "snapshots"
        try:
            return any(snapshots.iterdir())
        except OSError:
            return False

    def file(self, kind: str, name: str, path: str) -> Path | None:
        """A file from the newest snapshot that has it; None if none has."""
        if not _ID.fullmatch(name) and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            return None
        snapshots = self.folder / f"{kind}--{name.replace('/', '--')}" / "snapshots"
        try:
            found = [there for snapshot in snapshots.iterdir() if (there := snapshot / path).is_file()]
            return max(found, key=lambda file: file.stat().st_mtime, default=None)
        except OSError:
            return None


def is_hub_id(name: str, root: Path) -> bool:
    """Whether the name has the form organisation/name and is not a path below an existing folder."""
    if not _ID.fullmatch(name) or name.endswith((".txt", ".jsonl", ".json")):
        return False
    return not (root / name.partition("/")[0]).is_dir()
