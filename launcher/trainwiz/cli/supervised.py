"""A command run to its end: its records before, the screen meanwhile, the outcome and its diagnosis after."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.errors import TrainwizError
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.command import Command
    from trainwiz.diagnose import Diagnosis
    from trainwiz.machine import Machine
    from trainwiz.outcome import Outcome
    from trainwiz.process.ranks import Process
    from trainwiz.process.torchrun import WorkerLogs
    from trainwiz.store.runs import Run

_TAIL_BYTES = 1 << 16
_LAUNCHER_LOG = "launcher"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is to be run and recorded. `resume` is the line that continues the run, where it can be continued."""

    command: Command
    run: Run
    machine: Machine
    grace: float
    total_updates: int | None = None
    workers: WorkerLogs | None = None
    first_rank: int = 0
    ranks_here: int = 1
    plan_hash: str | None = None
    resumed_from: str | None = None
    resume: str | None = None
    config: str | None = None


def run(launch: Launch) -> int:
    """Run it, tell how it ended, and return the exit code."""
    from trainwiz.process import ranks
    from trainwiz.store.metrics import Metrics
    from trainwiz.ui.live import Progress, Screen, terminal_size

    launch.run.record("command", describe(launch))
    metrics = _Remembered(Metrics(launch.run.metrics))
    screen = Screen(Progress(metrics.new, launch.total_updates))
    try:
        outcome = ranks.run(
            _processes(launch, terminal_size()),
            audience=screen,
            grace=launch.grace,
            show=launch.workers.found if launch.workers else None,
        )
    finally:
        screen.close()
    metrics.new()
    return _end(launch, _translated(launch, outcome), metrics)


def describe(launch: Launch) -> dict[str, Any]:
    """What `command.json` keeps: enough to do it again, and no secret."""
    from trainwiz import __version__
    from trainwiz.cli import redaction

    command, interpreter = launch.command, launch.machine.interpreter
    packages = {name: v for name, v in (interpreter.packages if interpreter else {}).items() if v}
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "argv": redaction.arguments(command.argv),
        "cwd": os.path.abspath(command.cwd),
        "environment": redaction.environment(command.environ),
        "ranks": [{"rank": r.rank, "environment": redaction.environment(r.environ)} for r in command.ranks],
        "launcher": command.launcher,
        "config": launch.config,
        "versions": {
            "trainwiz": __version__,
            "python": interpreter.python_version if interpreter else None,
            **packages,
        },
        "plan_hash": launch.plan_hash,
        "resumed_from": launch.resumed_from,
        "hostname": os.uname().nodename,
        "pid": os.getpid(),
    }


class _Remembered:
    """Metrics with the first and the last that came, for the summary."""

    def __init__(self, metrics: Any) -> None:
        self._metrics = metrics
        self.first: Mapping[str, Any] = {}
        self.last: Mapping[str, Any] = {}

    def new(self) -> Sequence[Mapping[str, Any]]:
        lines: Sequence[Mapping[str, Any]] = self._metrics.new()
        for line in lines:
            if isinstance(line.get("loss"), (int, float)):
                self.first = self.first or line
                self.last = line
        return lines


def _processes(launch: Launch, terminal: Mapping[str, str]) -> list[Process]:
    from trainwiz.process.ranks import Process

    command, log = launch.command, launch.run.log
    agent = command.launcher is not None
    if launch.workers:
        agent_log = launch.run.logs / f"{_LAUNCHER_LOG}-{launch.first_rank}.log"
    return [
        Process(
            rank=rank.rank,
            argv=command.argv,
            environ={**(terminal if rank.rank == 0 else {}), **command.environ, **rank.environ},
            cwd=command.cwd,
            log=agent_log if launch.workers else log(rank.rank),
            agent=agent,
        )
        for rank in command.ranks
    ]


def _translated(launch: Launch, outcome: Outcome) -> Outcome:
    """The outcome of the ranks behind a launcher, which turns every exit code into 1."""
    from trainwiz.outcome import shell_code

    if launch.command.launcher is None:
        return outcome
    from trainwiz.process.torchrun import first_failure

    here = range(launch.first_rank, launch.first_rank + launch.ranks_here)
    if outcome.exit_code == 0:
        return dataclasses.replace(outcome, codes=dict.fromkeys(here, 0))
    name = launch.run.logs / f"{_LAUNCHER_LOG}-{launch.first_rank}.log" if launch.workers else launch.run.log(0)
    failure = first_failure(tail(name))
    if failure is None:
        return outcome
    rank, code = failure
    return dataclasses.replace(outcome, exit_code=shell_code(code), first_failed=rank, codes={rank: code})


def _end(launch: Launch, outcome: Outcome, metrics: _Remembered) -> int:
    from trainwiz.ui import outcome as ending

    try:
        launch.run.record("outcome", outcome.to_dict())
    except TrainwizError as error:
        # The training's own exit code matters more than its record.
        console.failure(error)
    # The training's own code is the result, also where nobody is left to be told (a terminal that closed).
    with contextlib.suppress(OSError):
        ending.show(
            outcome,
            _diagnosis(launch, outcome) if outcome.exit_code else None,
            folder=near(launch.run.folder),
            first=metrics.first,
            last=metrics.last,
            checkpoint=near(found) if (found := launch.run.checkpoint()) else None,
            resume=launch.resume if outcome.exit_code or outcome.interrupted else None,
        )
    return outcome.exit_code


def _diagnosis(launch: Launch, outcome: Outcome) -> Diagnosis | None:
    from trainwiz.diagnose import diagnose

    rank = outcome.first_failed
    if rank is None:
        return None
    logs = [launch.run.logs / name for name in (f"rank-{rank}.log", f"rank-{rank}.err.log")]
    said = "\n".join(tail(file) for file in logs)
    return diagnose(outcome, {rank: said}, log=str(near(launch.run.log(rank))))


def tail(file: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def near(path: Path) -> Path:
    """The path as seen from here, where that is shorter."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
