"""`trainwiz runs`: what was launched in a project, how it ended, and removing what is no longer wanted."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwiz import files
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.quantities import size
from trainwiz.record.run import State, state, summary
from trainwiz.store import history, jobs, runs
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui import runs as table
from trainwiz.workflows.jobs import states

_AGE = re.compile(r"(\d+)([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_ENDED = (State.DONE, State.FAILED, State.STOPPED, State.KILLED)
"""States of runs that may be removed; of the others, a process may still be writing."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which runs are meant."""

    states: Sequence[str] = ()
    """Only runs in one of these states; empty means all."""
    since: str = ""
    """Only runs that began at most so long ago: 30m, 12h, 7d, 2w."""
    before: str = ""
    """Only runs that began longer ago than this."""
    most: int = 0
    """Only so many, the newest; 0: all."""


def show(folder: str, *, chosen: Chosen, as_json: bool) -> None:
    """List the runs of a project, the oldest first. Raises `UsageError` where there are none."""
    project = Path(folder)
    _check_states(chosen.states)
    # A run's job may know another state than the run's own records.
    found = _chosen(project, dataclasses.replace(chosen, states=()), must_exist=not (as_json and project.is_dir()))
    looked_at = found if chosen.states else found[-chosen.most :]
    now = time.time()
    rows = states.told(project, looked_at, [summary(history.brief(run), now) for run in looked_at])
    if chosen.states:
        rows = [row for row in rows if row[0].state.value in chosen.states][-chosen.most :]
    if as_json:
        console.data_json([table.to_dict(each, job.id if job else None) for each, job in rows])
        return
    if rows:
        table.show([each for each, _ in rows])
    else:
        console.talk(t("no run matches"))
    left_out = len(found) - len(looked_at)
    if left_out and not chosen.states:
        console.talk(t("older runs, not shown: {n}; --last 0 lists all", n=left_out), style="dim")


def prune(folder: str, *, chosen: Chosen, confirmed: bool, as_json: bool = False) -> int:
    """Show what would be removed, and remove it only if `confirmed`. Returns 1 if a folder could not be removed.

    Never the newest run, a run that may still be going on, or one whose checkpoints another run continues.
    """
    if not (chosen.states or chosen.before):
        raise UsageError(
            say("--prune needs to know which runs"), say("add --before 30d, or --state failed; both narrow it down")
        )
    project = Path(folder)
    _check_states(chosen.states)
    every = runs.every(project)
    needed = {_home(run) for run in every if run.checkpoints.is_symlink()} | {
        files.resolved(run.folder) for run in every[-1:]
    }
    removable = [
        run for run in _chosen(project, chosen) if files.resolved(run.folder) not in needed and _has_ended(run)
    ]
    held = {run.name: _size(run.folder) for run in removable}
    total = sum(held.values())
    if not as_json:
        for name, of_run in held.items():
            console.data(f"{name}  {size(of_run)}")
    failed = [run.name for run in removable if not _removed(run)] if confirmed else []
    if as_json:
        gone = {name: confirmed and name not in failed for name in held}
        console.data_json([{"name": name, "bytes": held[name], "removed": gone[name]} for name in held])
    if not removable:
        console.talk(t("no run to remove; the newest run is kept, and so are runs that are running or continued"))
        return 0
    if not confirmed:
        console.talk(
            t(
                "would remove runs: {n}, {size}; nothing was removed. To remove them, add --yes",
                n=len(removable),
                size=size(total),
            )
        )
        return 0
    if failed:
        console.failure(TrainwizError(say("could not remove: {names}", names=", ".join(failed))))
        return 1
    console.talk(t("removed runs: {n}, {size}", n=len(removable), size=size(total)), style="good")
    return 0


def _check_states(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in {each.value for each in State}]
    if unknown:
        known = ", ".join(each.value for each in State)
        raise UsageError(say("unknown state {name}; use one of {known}", name=unknown[0], known=known))


def _chosen(project: Path, chosen: Chosen, *, must_exist: bool = True) -> list[Run]:
    found = runs.every(project)
    if not found and must_exist and not jobs.every(project):
        history.find(runs.LATEST, project)
    now = time.time()
    # Names say when a run began, in local time, and sort as times do.
    since = _name_at(now - _seconds(chosen.since)) if chosen.since else ""
    before = _name_at(now - _seconds(chosen.before)) if chosen.before else "9"
    within = [run for run in found if since <= run.name < before]
    if not chosen.states:
        return within
    return [run for run in within if state(history.without_metrics(run)).value in chosen.states]


def _seconds(age: str) -> float:
    match = _AGE.fullmatch(age)
    if match is None:
        raise UsageError(say("{age} is not a duration; examples: 30m, 12h, 7d, 2w", age=shlex.quote(age)))
    return float(match[1]) * _SECONDS[match[2]]


def _name_at(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return ""


def _has_ended(run: Run) -> bool:
    return state(history.without_metrics(run)) in _ENDED


def _home(run: Run) -> Path:
    """The run whose checkpoints this one continues."""
    return files.resolved(run.checkpoints).parent


def _size(folder: Path) -> int:
    inside = () if folder.is_symlink() else folder.rglob("*")
    return sum(path.lstat().st_size for path in inside if not path.is_symlink() and path.is_file())


def _removed(run: Run) -> bool:
    # Renamed first: a half-removed one is then no run any more.
    aside = run.folder.with_name(f".removed-{run.name}")
    try:
        if run.folder.is_symlink():  # what it leads to is not in this project
            run.folder.unlink()
            return True
        run.folder.rename(aside)
        shutil.rmtree(aside)
    except OSError:
        return False
    return True
