"""The hub's local cache: which models and data sets were downloaded before."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class HubCache:
    """Where huggingface_hub keeps downloads: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        home = environ.get("HF_HOME") or os.path.join(
            environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
        )
        self.folder = Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()

    def holds(self, kind: str, name: str) -> bool:
        """Whether some snapshot of `name` is there; `kind` is models or datasets."""
        snapshots = self.folder / f"{kind}--{name.replace('/', '--')}" / "snapshots"
        try:
            return any(snapshots.iterdir())
        except OSError:
            return False

    def file(self, kind: str, name: str, path: str) -> Path | None:
        """A file of the snapshot that was downloaded last; None where none has it."""
        if not _ID.fullmatch(name) and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            return None
        snapshots = self.folder / f"{kind}--{name.replace('/', '--')}" / "snapshots"
        try:
            found = [there for snapshot in snapshots.iterdir() if (there := snapshot / path).is_file()]
            return max(found, key=lambda file: file.stat().st_mtime, default=None)
        except OSError:
            return None


def is_hub_id(name: str, root: Path) -> bool:
    """Whether the name reads as organisation/name, and not as a path below a folder that is there."""
    if not _ID.fullmatch(name) or name.endswith((".txt", ".jsonl", ".json")):
        return False
    return not (root / name.partition("/")[0]).is_dir()
