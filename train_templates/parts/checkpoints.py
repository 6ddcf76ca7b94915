"""Checkpoints that survive anything: written aside, hashed, renamed, and only then the oldest removed.

Nothing here depends on the engine: how its state is written into a folder and read from it is given.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from batches import Agreement

if TYPE_CHECKING:
    from train import Config


class Checkpoints:
    """Complete checkpoints in one folder, named by update.

    `save_state` writes the engine's state into a folder and `load_state` reads it back, each on all ranks together.
    """

    def __init__(
        self,
        config: Config,
        agreement: Agreement,
        save_state: Callable[[str], object],
        load_state: Callable[[str], object],
    ) -> None:
        self.config, self.agreement, self.save_state, self.load_state = config, agreement, save_state, load_state
        self.folder = Path(config.output_dir) / "checkpoints"

    def complete(self) -> list[Path]:
        """All that were renamed to their final name, oldest first, by update."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(p for p in found if re.fullmatch(r"checkpoint-\d{8}", p.name))

    def save(self, update: int) -> None:
        """Save after `update` updates. A crash at any point leaves every earlier checkpoint as it was."""
        final = self.folder / f"checkpoint-{update:08d}"
        aside = final.with_suffix(".tmp")
        if self.agreement.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        self.agreement.wait()
        self.save_state(str(aside))
        self.agreement.wait()
        if self.agreement.rank == 0:
            files = {str(p.relative_to(aside)): sha256(p) for p in sorted(aside.rglob("*")) if p.is_file()}
            manifest = {"update": update, "config": vars(self.config), "sha256": files}
            (aside / "manifest.json").write_text(json.dumps(manifest, indent=1))
            sha256(aside / "manifest.json")
            aside.rename(final)
            limit = self.config.checkpoints_total_limit
            for old in self.complete()[: -limit or None] if limit else ():
                shutil.rmtree(old)
        self.agreement.wait()

    def resume(self) -> int:
        """Load the newest checkpoint whose files are all as they were written; return its update, 0 for none."""
        choice = self.newest_valid() if self.agreement.rank == 0 else None
        path, update, problem = self.agreement.share(choice)
        if problem:
            raise SystemExit(problem)
        if path:
            self.load_state(path)
        return update

    def newest_valid(self) -> tuple[str, int, str]:
        """Path and update of the checkpoint to continue from, or the reason why there must be none."""
        if self.config.resume == "none":
            problem = f"{self.folder} holds an earlier run: --resume auto continues it, --output_dir DIR starts another"
            return "", 0, problem if self.complete() else ""
        for path in reversed(self.complete()):
            try:
                manifest = json.loads((path / "manifest.json").read_text())
                damaged = [name for name, digest in manifest["sha256"].items() if sha256(path / name) != digest]
            except (OSError, ValueError, KeyError) as error:
                damaged = [str(error)]
            if damaged:
                print(f"skipping {path}: damaged: {', '.join(damaged)}", flush=True)
                path.rename(path.with_suffix(f".damaged-{time.time_ns()}"))
                continue
            for name in ("seed", "real_batch_size"):
                before, now = manifest["config"][name], getattr(self.config, name)
                if before != now:
                    return "", 0, f"{path} was trained with {name} {before}, not {now}: its data order would not go on"
            print(f"resuming from {path}", flush=True)
            return str(path), manifest["update"], ""
        print(f"no checkpoint in {self.folder}: starting at the beginning", flush=True)
        return "", 0, ""


def sha256(path: Path) -> str:
    """The file's hash; what was hashed is on the disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()
