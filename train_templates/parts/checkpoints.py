"""Crash-safe checkpoints: written to a temporary folder, synced, hashed and renamed before the oldest is removed.

Nothing here depends on the engine, which provides functions that save and load its state. A folder that is named
checkpoint-00000300 was complete and on the disk when it got that name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable

# feature: names
from collections.abc import Sequence

# end: names

# feature: background
from concurrent.futures import ThreadPoolExecutor

# end: background
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

# feature: fsdp
from torch.distributed.checkpoint.api import CheckpointException

# end: fsdp
# feature: names
from labels import other_classes

# end: names
# feature: selected
from manifest import KEPT

# end: selected
from manifest import MANIFEST, damage_in, files_in, hash_files

# feature: selected
from manifest import read_kept

# end: selected
from manifest import read_manifest, sync, update_of
from trust import UnknownClass, Unsound, digest_of, is_own, known_classes_only

# feature: recut
from trust import put_together

# end: recut
from trust import signature

if TYPE_CHECKING:
    from train import Config

PATIENCE = timedelta(hours=3)  # how long ranks wait for one that reads, hashes or writes files
# feature: as_saved
ANY_WORLD = ("whole", "fsdp", "zero0")
# end: as_saved
# feature: recut
ANY_WORLD = ("zero1", "zero2", "zero3")
# end: recut
"""Layouts that any number of ranks can load; others need the number of ranks that saved them."""


class Failed(Exception):
    """A problem, described in a sentence. `together` raises it on all ranks."""


class Checkpoints:
    """The complete checkpoints in one folder, ordered by update, written by one training at a time.

    `layout` names how the state is distributed over files; a checkpoint with another layout is not loaded. `save_state`
    writes the engine's state into a folder and `load_state` reads it back; both are called on all ranks together.
    """

    def __init__(
        self, config: Config, layout: str, save_state: Callable[[Path], object], load_state: Callable[[Path], object]
    ) -> None:
        self.config, self.layout, self.save_state, self.load_state = config, layout, save_state, load_state
        self.folder = Path(config.output_dir) / "checkpoints"
        # A separate group over host memory, which may be used while the training uses the others.
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE) if dist.is_initialized() else None
        self.rank = dist.get_rank() if self.group else 0
        self.world = dist.get_world_size() if self.group else 1
        self.samples = 0  # in the training data; set by `resume`
        # feature: names
        self.classes: Sequence[str] | None = None  # what the outputs of the model stand for, by number
        # end: names
        # feature: selected
        self.kept: dict[str, Any] = {}  # what the loop must know after a resume, besides the engine's state
        # end: selected
        self.failures, self.problem = 0, ""  # number of failed saves; why the last save failed, if it did
        # feature: background
        self.write_state: Callable[[Path], object] | None = None  # writes what `save_state` only copied, in the thread
        self.thread, self.sealing = ThreadPoolExecutor(max_workers=1), None
        # end: background

    def together(self, step: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a step on every rank and return the results by rank. If it fails on one, it fails on all."""
        result, problem = None, ""
        try:
            result = step(*arguments)
        # feature: fsdp
        except CheckpointException as error:  # it is not an Exception
            problem = f"rank {self.rank}: {error}"
        # end: fsdp
        except Failed as error:
            problem = str(error)
        except Exception as error:
            problem = f"rank {self.rank}: {type(error).__name__}: {error}"
        outcomes = [(result, problem)] * self.world
        if self.group:
            dist.all_gather_object(outcomes, (result, problem), group=self.group)
        if problems := dict.fromkeys(problem for _, problem in outcomes if problem):
            raise Failed("; ".join(problems))
        return [result for result, _ in outcomes]

    def first(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Run a step on rank 0 only, and return its result on every rank."""
        return self.together(step if self.rank == 0 else lambda *_: None, *arguments)[0]

    def complete(self) -> list[Path]:
        """Return all checkpoints with a final name, ordered by update. Times and other names are ignored."""
        found = [path for path in self.folder.iterdir() if re.fullmatch(r"checkpoint-\d{8,}", path.name)]
        return sorted(found, key=update_of)

    def save(self, update: int) -> int:
        """Save after `update` updates. Return how many saves have failed so far.

        A crash at any point leaves every earlier checkpoint intact.
        """
        # feature: background
        self.finish()  # one at a time
        # end: background
        aside = self.folder / f"checkpoint-{update:08d}.tmp"
        try:
            self.first(self.make_room, aside)
            # feature: foreground
            self.together(self.save_state, aside)
            # end: foreground
            # feature: background
            outcomes = self.together(self.save_state, aside)
            # end: background
            # feature: selected
            self.first((aside / KEPT).write_text, json.dumps(self.kept))
            # end: selected
            # feature: foreground
            self.seal(update, aside)
            # end: foreground
            # feature: background
            # The state is in host memory or the page cache; writing it to the disk continues beside the training.
            self.sealing = (update, aside, self.thread.submit(self.seal, update, aside))
            if False in outcomes:  # a rank had no memory for a copy
                self.finish()
            # end: background
        except Failed as failure:
            self.give_up(update, aside, failure)
        return self.failures

    def make_room(self, aside: Path) -> None:
        """Make an empty folder to write to, if the disk has space for another checkpoint like the last."""
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        last = self.complete()[-1:]
        needed = sum((last[0] / name).stat().st_size for name in files_in(last[0])) if last else 0
        if needed > (free := shutil.disk_usage(aside).free):
            raise OSError(errno.ENOSPC, f"No space left on device: {needed:,} bytes needed, {free:,} free")

    def hashed(self, folder: Path) -> dict[str, str]:
        """Return the sha256 of the files below a folder, by name. Each rank syncs and hashes its share of them."""
        names = self.first(files_in, folder)
        parts = self.together(hash_files, folder, names[self.rank :: self.world])
        return {name: digest for part in parts for name, digest in part.items()}

    def seal(self, update: int, aside: Path) -> None:
        """Sync and hash all files, write the manifest, and give the checkpoint its final name."""
        # feature: background
        if self.write_state:
            self.together(self.write_state, aside)
        # end: background
        self.first(self.publish, update, aside, self.hashed(aside))
        self.problem = ""

    def publish(self, update: int, aside: Path, hashes: dict[str, str]) -> None:
        """Write the manifest, give the checkpoint its final name, and remove checkpoints beyond the limit."""
        names = files_in(aside)
        hashes |= hash_files(aside, [name for name in names if name not in hashes])  # files of this machine only
        manifest = {
            "update": update,
            "layout": self.layout,
            "world": self.world,
            "samples": self.samples,
            # feature: names
            "classes": self.classes,
            # end: names
            "config": asdict(self.config),
            "bytes": {name: (aside / name).stat().st_size for name in names},
            "sha256": hashes,
        }
        manifest["signed"] = signature(digest_of(manifest))
        (aside / MANIFEST).write_text(json.dumps({**manifest, "self": digest_of(manifest)}, indent=1))
        for path in (aside / MANIFEST, *filter(Path.is_dir, aside.rglob("*")), aside):
            sync(path)
        aside.rename(final := aside.with_suffix(""))
        sync(self.folder)
        limit = self.config.checkpoints_total_limit
        needed = {final}
        # feature: best
        needed.add(self.path_of(read_kept(final).get("best_update", 0)))
        # end: best
        for old in self.complete()[: -limit or None] if limit else ():
            if old not in needed:
                remove(old)

    def give_up(self, update: int, aside: Path, failure: Failed) -> None:
        """Report that this update has no checkpoint. Let the training continue, or end it."""
        self.failures, self.problem = self.failures + 1, f"update {update} was not saved: {failure}"
        self.first(shutil.rmtree, aside, True)
        newest = self.first(self.complete)[-1:]
        if not newest:
            raise SystemExit(f"{self.problem}; no checkpoint could be written so far")
        if self.config.on_failed_save == "stop":
            raise SystemExit(f"{self.problem}; the newest checkpoint is {newest[0]}")
        if self.rank == 0:
            print(f"{self.problem}; training goes on, the newest checkpoint is {newest[0]}", flush=True)

    # feature: background
    def finish(self) -> None:
        """Wait for the checkpoint that is being written, if any."""
        if self.sealing:
            (update, aside, sealed), self.sealing = self.sealing, None
            try:
                sealed.result()
            except Failed as failure:
                self.give_up(update, aside, failure)

    # end: background
    def close(self) -> None:
        """Wait until every rank has finished; exit with an error if the last checkpoint could not be saved.

        Rank 0 may be writing the final weights. NCCL would give up after 10 minutes.
        """
        # feature: background
        self.finish()
        # end: background
        if self.problem:
            raise SystemExit(self.problem)
        if self.group:
            dist.barrier(group=self.group)

    def resume(self, samples: int) -> int:
        """Load the newest undamaged checkpoint. Return its update, or 0 if there is none.

        `samples` is the number of training samples. With a different number, the sample order would not continue.
        """
        self.samples = samples
        try:
            self.first(self.claim)
            path = self.newest_valid()
            if path:
                self.first(self.check, path)
                self.together(self.load, path)
                # feature: selected
                self.kept.update(self.first(read_kept, path))
                # end: selected
        except Failed as failure:
            raise SystemExit(str(failure)) from None
        return update_of(path) if path else 0

    def load(self, path: Path) -> None:
        """Load the state, unpickling known classes only."""
        try:
            with known_classes_only(path, self.config.trust):
                self.load_state(path)
        except UnknownClass as unknown:
            # The other ranks may wait for this one inside the engine; when it exits, they end.
            raise SystemExit(
                f"{path} holds {unknown}, which is not part of a checkpoint and could run any code: nothing was loaded;"
                " --trust true loads it anyway"
            ) from None
        except Unsound as unsound:
            raise SystemExit(
                f"{path} is not as a training writes it ({unsound}) and could fill the memory: nothing was loaded;"
                " --trust true loads it anyway"
            ) from None

    # feature: recut
    def put_together(self, path: Path) -> Path | None:
        """Return a folder with the checkpoint's state as any number of ranks can load it; None: it already is.

        The caller removes the folder after loading it.
        """
        if read_manifest(path)["world"] == self.world:
            return None
        whole = Path(self.config.output_dir) / "whole"
        self.first(put_together, path / "state", whole, self.config.trust)
        return whole

    # end: recut
    # feature: best
    def path_of(self, update: int) -> Path:
        """Return the path of an update's checkpoint."""
        return self.folder / f"checkpoint-{update:08d}"

    def go_back(self, update: int) -> None:
        """Load the state after an earlier update. If its checkpoint is lost or damaged, report it and load nothing."""
        # feature: background
        self.finish()
        # end: background
        path = self.path_of(update)
        damage = self.first(damage_in, path) or self.first(damage_in, path, self.hashed(path))
        if damage and self.rank == 0:
            print(f"the best checkpoint is missing, so the model is the last one: {path}: {damage[0]}", flush=True)
        if not damage:
            self.together(self.load, path)

    # end: best

    def claim(self) -> None:
        """Lock the folder against other trainings, and remove incomplete checkpoints of a killed one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # never write to the target of a link
        self.lock = os.fdopen(os.open(self.folder / ".lock", flags, 0o666), "rb+", 0)  # held until this process ends
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise Failed(f"another training writes into {self.folder}: --output_dir DIR starts one elsewhere") from None
        except OSError:
            pass  # a file system without locks
        for path in self.folder.iterdir():
            if re.fullmatch(r"checkpoint-\d{8,}\.(tmp|removed)", path.name):
                shutil.rmtree(path, ignore_errors=True)
        if self.config.resume == "none" and self.complete():
            raise Failed(
                f"{self.folder} holds an earlier run: --resume auto continues it, --output_dir DIR starts another"
            )

    def newest_valid(self) -> Path | None:
        """Return the newest undamaged checkpoint, which all ranks check together. Rename damaged ones."""
        for path in reversed(self.first(self.complete)):
            damage = self.first(damage_in, path) or self.first(damage_in, path, self.hashed(path))
            if not damage:
                return path
            self.first(put_aside, path, damage)
        if self.rank == 0 and self.config.resume == "auto":
            print(f"no checkpoint in {self.folder}: starting at the beginning", flush=True)
        return None

    def check(self, path: Path) -> None:
        """Refuse a checkpoint that this training cannot continue exactly. Report all other changes."""
        manifest = read_manifest(path)
        before, now = manifest["config"], asdict(self.config)
        order = {name: (before[name], now[name]) for name in ("seed", "real_batch_size")}
        order["samples"] = (manifest.get("samples", self.samples), self.samples)
        for name, (then, today) in order.items():
            if then != today:
                raise Failed(f"{path} was trained with {name} {then}, not {today}: its data order would not continue")
        # feature: names
        if self.classes is not None and (problem := other_classes(manifest.get("classes"), self.classes)):
            raise Failed(f"{path} has learned other classes: {problem}; --output_dir DIR starts another training")
        # end: names
        if manifest["layout"] != self.layout:
            raise Failed(f"{path} was saved as {manifest['layout']}, and cannot be loaded as {self.layout}")
        if manifest["world"] != self.world and self.layout not in ANY_WORLD:
            raise Failed(
                f"{path} was saved by {manifest['world']} ranks; {self.layout} can only load it with the same number, "
                f"not with {self.world}"
            )
        told = {name for name in now if before.get(name, now[name]) != now[name]} - {"output_dir", "resume", "trust"}
        changed = [f"{name} {str(before[name])[:100]} -> {now[name]}" for name in sorted(told)]
        print(f"resuming from {path}", *changed, sep="\n  changed since: ", flush=True)
        if not is_own(manifest):
            print("  it is not signed with your key: somebody else, another machine or an older script wrote it")
        schedule = {"n_steps", "n_epochs", "n_warmup_steps", "learning_rate", "lr_scheduler_type"}
        # feature: own_schedule
        schedule |= {"warmup_ratio", "min_lr_ratio", "decay_ratio", "decay_type", "polynomial_power"}
        # end: own_schedule
        if told & schedule:
            print("  so the learning rate follows these values from here on, and may jump", flush=True)


def put_aside(path: Path, damage: list[str]) -> None:
    """Report the damage and rename the checkpoint, because training will save this update again."""
    print(f"skipping {path}: {', '.join(damage)}", flush=True)
    path.rename(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))


def remove(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a half-deleted one is not taken for complete."""
    with suppress(OSError):  # a checkpoint that cannot be deleted stays
        path = path.rename(path.with_suffix(".removed"))
        shutil.rmtree(path)
