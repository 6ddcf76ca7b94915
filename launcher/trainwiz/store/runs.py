"""Run folders: `runs/<time>-<n>/` with all files of a run, and `runs/latest`, a link to the newest.

A run that continues another one links to its `checkpoints`, so that rotation counts over the whole lineage, and nothing
is copied or lost.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.message import say
from trainwiz.record.shapes import readable
from trainwiz.shell_words import quoted
from trainwiz.store import liveness

RUNS = "runs"
LATEST = "latest"
# docs/decisions/supervision.md: Each run reserves 256 KiB for its outcome
_RESERVE = ".reserve"
_RESERVE_BYTES = 1 << 18
"""Enough for an outcome with its diagnosis and the stacks of a few hundred ranks."""
_RECORD_BYTES = 8 << 20
"""A launch of 20,000 files of code records a third of that."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d+")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path
    """`runs/NAME` of a project."""
    machine: int = 0
    """The machine that writes records here, of a run over several."""

    @property
    def name(self) -> str:
        """Its name below `runs/`."""
        return self.folder.name

    @property
    def project(self) -> Path:
        """The folder of the project that has it; the current one where it lies elsewhere."""
        return self.folder.parent.parent if self.folder.parent.name == RUNS else Path()

    @property
    def logs(self) -> Path:
        """The folder of the ranks' logs."""
        return self.folder / "logs"

    def log(self, rank: int) -> Path:
        """One rank's log: its stdout and stderr."""
        return self.logs / f"rank-{rank}.log"

    @property
    def metrics(self) -> Path:
        """The file to which the script writes metrics at every logging step."""
        return self.folder / "metrics.jsonl"

    @property
    def config(self) -> Path:
        """The settings that the script states when it begins to train."""
        return self.folder / "config.json"

    @property
    def beat(self) -> Path:
        """The file that the launcher touches while the run goes on."""
        return self.folder / ".running"

    @property
    def stop_mark(self) -> Path:
        """The file that `trainwiz stop` leaves: a user wanted the run to end, so nothing continues it automatically."""
        return self.folder / ".stopped"

    @property
    def memory(self) -> Path:
        """Samples of the ranks' memory."""
        return self.folder / "memory.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The script's checkpoints, or a link to those of the run that this one continues."""
        return self.folder / "checkpoints"

    def complete(self) -> dict[int, Path]:
        """Complete checkpoints by update, in order; the script gives a checkpoint its name when it is complete."""
        found = {
            int(match[1]): path
            for path in (self.checkpoints.iterdir() if self.checkpoints.is_dir() else ())
            if (match := _CHECKPOINT.fullmatch(path.name)) and path.is_dir()
        }
        return dict(sorted(found.items()))

    def checkpoint(self) -> Path | None:
        """The newest complete checkpoint."""
        return next(reversed(self.complete().values()), None)

    def file(self, name: str) -> Path:
        """The file of this machine's record `command` or `outcome`."""
        suffix = f"-machine-{self.machine}" if self.machine else ""
        return self.folder / f"{name}{suffix}.json"

    def record(self, name: str, value: Mapping[str, Any]) -> Path:
        """Write `command` or `outcome` as JSON, atomically. Raises `TrainwizError`."""
        path = self.file(name)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # Not flushed to the disk: a launch need not wait for that, and a power failure ends the run anyway.
            aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(aside, path)
        except OSError as error:
            if error.errno in _FULL and self._free_reserve():
                return self.record(name, value)
            raise _unwritable(self.folder, error) from None
        return path

    def reserve(self) -> None:
        """Reserve some space, so that the outcome can be written even when the disk is full."""
        with contextlib.suppress(OSError):
            (self.folder / _RESERVE).write_bytes(bytes(_RESERVE_BYTES))

    def release(self) -> None:
        """Free the reserved space."""
        self._free_reserve()

    def _free_reserve(self) -> bool:
        try:
            (self.folder / _RESERVE).unlink()
        except OSError:
            return False
        return True

    def read(self, name: str) -> dict[str, Any]:
        """The run's record `command`, `outcome` or `config`; empty if it is missing or cannot be read."""
        return self._read(name, self.folder / f"{name}.json")

    def read_own(self, name: str) -> dict[str, Any]:
        """The same of this machine alone."""
        return self._read(name, self.file(name))

    def _read(self, name: str, file: Path) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            value = files.read_json(file, most=_RECORD_BYTES)
            if not isinstance(value, dict):
                return {}
            return value if name == "config" else readable(value)
        return {}


def is_name(word: str) -> bool:
    """Whether a word names a run: `latest`, a name, or a path that ends in one."""
    return word == LATEST or bool(NAME.fullmatch(Path(word).name)) or Path(word).parts[-2:] == (RUNS, LATEST)


def named(project: Path, name: str) -> Run:
    """The run of that name, whether it exists or not."""
    return Run(project / RUNS / name)


def next_name(project: Path, now: float | None = None) -> str:
    """The name for a run that starts now."""
    stem = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
    n = 1
    while os.path.lexists(project / RUNS / f"{stem}-{n}"):  # a link that leads nowhere has the name, too
        n += 1
    return f"{stem}-{n}"


def create(project: Path, *, continues: Run | None = None, now: float | None = None) -> Run:
    """Make a new run's folder and point `runs/latest` to it. Simultaneous runs get different folders.

    Raises `TrainwizError` if the project is not writable.
    """
    while True:
        try:
            run = Run(project / RUNS / next_name(project, now))
            make_private(run.folder, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(project / RUNS, error) from None
        _make_folders(run, continues)
        _link_to(project / RUNS / LATEST, run.name)
        return run


def join(project: Path, name: str, *, machine: int, continues: Run | None = None) -> Run:
    """The folder of a run that machine 0 has named; on a shared file system it exists already."""
    if not NAME.fullmatch(name):
        raise TrainwizError(say("machine 0 sent {name!r}, which is not a run name", name=name))
    run = Run(project / RUNS / name, machine)
    try:
        make_private(run.folder, exist_ok=True)
    except OSError as error:
        raise _unwritable(project / RUNS, error) from None
    _make_folders(run, continues)
    _link_to(project / RUNS / LATEST, name)
    return run


def every(project: Path) -> tuple[Run, ...]:
    """All runs of a project, the oldest first."""
    folder = project / RUNS
    names = [p.name for p in folder.iterdir() if NAME.fullmatch(p.name)] if folder.is_dir() else []
    return tuple(Run(folder / name) for name in sorted(names, key=lambda n: (n[:19], int(n[20:]))))


def to_continue(project: Path, name: str = LATEST) -> Run:
    """The run that `--resume` continues: the newest, or the one named (`latest`, a name, or a path).

    Raises `UsageError` if there is none, and `TrainwizError` if it has no checkpoint or is still running.
    """
    runs = every(project)
    if not runs:
        raise UsageError(
            say("{folder} has no run to resume", folder=project / RUNS),
            say("start a run: trainwiz launch {folder}", folder=quoted(project)),
        )
    wanted = runs[-1].name if Path(name).name == LATEST else Path(name).name
    run = next((r for r in runs if r.name == wanted), None)
    if run is None:
        raise UsageError(
            say("no run {name} in {folder}", name=name, folder=project / RUNS),
            say("choose another run; the newest is {name}", name=runs[-1].name),
        )
    _refuse_running(run)
    if run.checkpoint() is None:
        _no_checkpoint(run, runs)
    return run


# docs/decisions/supervision.md: A run counts as preempted if its launcher was asked to stop and a checkpoint exists
def begun(project: Path) -> tuple[Run, ...]:
    """All runs except those that were stopped before their ranks were started, which have no record."""
    return tuple(run for run in every(project) if run.file("command").exists())


def preempted(project: Path) -> Run | None:
    """The newest run, if a scheduler stopped it and it left a checkpoint."""
    newest = begun(project)[-1:]
    return next((run for run in newest if run.read("outcome").get("preempted") and run.checkpoint()), None)


def _no_checkpoint(run: Run, runs: tuple[Run, ...]) -> None:
    others = [r for r in runs if r is not run and r.checkpoint()]
    raise TrainwizError(
        say("run {name} has no complete checkpoint to resume from", name=run.name),
        say(
            "resume run {name} instead: trainwiz launch {folder} --resume {name}",
            name=others[-1].name,
            folder=quoted(run.project),
        )
        if others
        else say("start over, without --resume: trainwiz launch {folder}", folder=quoted(run.project)),
    )


def _refuse_running(run: Run) -> None:
    started = run.read("command")
    if not run.read("outcome") and liveness.is_running(started, run.beat):
        pid = started["pid"]
        if started.get("hostname") != os.uname().nodename:
            host = started.get("hostname")
            raise TrainwizError(
                say(
                    "run {name} is still running on {host}; two runs cannot share its checkpoints",
                    name=run.name,
                    host=host,
                ),
                say("wait until it ends, or stop it there"),
            )
        raise TrainwizError(
            say(
                "run {name} is still running (process {pid}); two runs cannot share its checkpoints",
                name=run.name,
                pid=pid,
            ),
            say("wait until it ends, or end it: kill {pid}", pid=pid),
        )


def make_private(folder: Path, *, exist_ok: bool) -> None:
    """Make a run's folder that only this user can read; where `runs` is marked for a group, that group can, too."""
    shared = 0
    with contextlib.suppress(OSError):  # it may have to be made first
        shared = folder.parent.stat().st_mode & stat.S_ISGID
    folder.mkdir(mode=0o777 if shared else 0o700, parents=True, exist_ok=exist_ok)


def _make_folders(run: Run, continues: Run | None) -> None:
    run.logs.mkdir(exist_ok=True)
    if continues is None:
        return
    # The link leads to the folder itself, so that runs in the middle of a lineage can be deleted.
    target = os.path.relpath(os.path.realpath(continues.checkpoints), os.path.realpath(run.folder))
    with contextlib.suppress(FileExistsError):
        run.checkpoints.symlink_to(target, target_is_directory=True)


def _link_to(link: Path, name: str) -> None:
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    # A folder of that name is not replaced; the link is only a convenience.
    with contextlib.suppress(OSError):
        aside.symlink_to(name, target_is_directory=True)
        os.replace(aside, link)
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()


def _unwritable(folder: Path, error: OSError) -> TrainwizError:
    return TrainwizError(
        say("cannot write to {folder}: {error}", folder=folder, error=error.strerror or error),
        say("free some space, or choose a folder on another disk")
        if error.errno in _FULL
        else say("make it writable, or copy the project to a folder you can write to"),
    )
