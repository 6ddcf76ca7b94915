"""A command run to its end: its records before, the screen meanwhile, the outcome and its diagnosis after."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.errors import TrainwizError
from trainwiz.record import redaction
from trainwiz.ui import console
from trainwiz.workflows.launch import provenance
from trainwiz.workflows.launch.metrics import Remembered

if TYPE_CHECKING:
    from trainwiz.command import Command
    from trainwiz.diagnose import Diagnosis
    from trainwiz.machine import Machine
    from trainwiz.outcome import Outcome, Verified
    from trainwiz.plan import Plan
    from trainwiz.process.ranks import Process
    from trainwiz.process.torchrun import WorkerLogs
    from trainwiz.process.watch import Watching
    from trainwiz.store.runs import Run

_TAIL_BYTES = 1 << 16
_RESERVE_SECONDS = 1.0
"""Of the grace: kept for writing the outcome down."""
_LAUNCHER_LOG = "launcher"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is to be run and recorded. `resume` is the line that continues the run, where it can be continued.

    `again` is added to the command's arguments for another attempt in the same run folder.
    """

    command: Command
    run: Run
    machine: Machine
    grace: float
    total_updates: int | None = None
    workers: WorkerLogs | None = None
    first_rank: int = 0
    first_machine: tuple[str, int] | None = None
    ranks_here: int = 1
    plan_hash: str | None = None
    resumed_from: str | None = None
    resume: str | None = None
    config: str | None = None
    config_values: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    arguments: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    max_restarts: int = 0
    restarts_per_hour: int = 10
    auto_batch: bool = False
    spares: bool = False
    hang_limit: float = 0.0
    stop_on_hang: bool = False
    debugged: Mapping[int, int] = field(default_factory=dict)


def run(launch: Launch) -> int:
    """Run it, tell how it ended, and return the exit code."""
    from trainwiz.probe import cgroup, space
    from trainwiz.process import ranks
    from trainwiz.store.jsonl import JsonLines
    from trainwiz.ui.live import Progress, Screen, terminal_size
    from trainwiz.workflows.launch.attempts import Attempts
    from trainwiz.workflows.launch.memory_samples import Sampler

    described = describe(launch)
    launch.run.record("command", described)
    launch.run.reserve()
    provenance.keep_plan(launch)
    code = provenance.CodeState(launch, described)
    metrics = Remembered(JsonLines(launch.run.metrics))
    screen = Screen(Progress(metrics.new, launch.total_updates))
    attempts, sampler = Attempts(launch), Sampler(launch.run.memory)
    folder = str(launch.run.folder)

    def once(attempt: Launch, inbox: ranks.Inbox) -> Outcome:
        kills = cgroup.oom_kills()
        outcome = ranks.run(
            _processes(attempt, terminal_size()),
            audience=screen,
            grace=launch.grace,
            show=launch.workers.found if launch.workers else None,
            inbox=inbox,
            watching=_watching(launch),
            spares=attempts.spares,
        )
        outcome = _blamed(launch, _translated(launch, outcome))
        return dataclasses.replace(outcome, observed=space.around(folder, kills)) if outcome.exit_code else outcome

    try:
        outcome = attempts.run(once, screen, metrics.update)
    finally:
        sampler.close()
        screen.close()
        code.close()
    metrics.new()
    return _end(launch, outcome, metrics, attempts.entries)


def describe(launch: Launch) -> dict[str, Any]:
    """What `command.json` keeps: enough to do it again, and no secret."""
    from trainwiz import __version__

    command, interpreter = launch.command, launch.machine.interpreter
    packages = {name: v for name, v in (interpreter.packages if interpreter else {}).items() if v}
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "argv": redaction.arguments(command.argv),
        "arguments": redaction.arguments(launch.arguments),
        "cwd": os.path.abspath(command.cwd),
        "environment": provenance.variables(command.environ),
        "ranks": [{"rank": r.rank, "environment": provenance.variables(r.environ)} for r in command.ranks],
        "launcher": command.launcher,
        "config": launch.config,
        "versions": {
            "trainwiz": __version__,
            "python": interpreter.python_version if interpreter else None,
            **packages,
        },
        "plan_hash": launch.plan_hash,
        "resumed_from": launch.resumed_from,
        **provenance.of(launch),
        "hostname": os.uname().nodename,
        "pid": os.getpid(),
    }


def _watching(launch: Launch) -> Watching | None:
    if launch.debugged:
        return None  # who steps through a rank is silent
    from trainwiz.network import ports
    from trainwiz.process.progress import FLOOR_SECONDS
    from trainwiz.process.watch import Watching

    here = range(launch.first_rank, launch.first_rank + launch.ranks_here)
    return Watching(
        files=lambda: [launch.run.log(rank) for rank in here],
        metrics=launch.run.metrics,
        stacks=launch.run.logs,
        ranks=tuple(here),
        floor=launch.hang_limit or FLOOR_SECONDS,
        stop=launch.stop_on_hang,
        # Behind torchrun the world spans several machines.
        machine=launch.run.machine if launch.workers else None,
        over=lambda: launch.first_machine is not None and not ports.answers(*launch.first_machine),
    )


def _processes(launch: Launch, terminal: Mapping[str, str]) -> list[Process]:
    from trainwiz.process.ranks import Process

    command, log = launch.command, launch.run.log
    agent = command.launcher is not None
    if launch.workers:
        agent_log = launch.run.logs / f"{_LAUNCHER_LOG}-{launch.first_rank}.log"
    return [
        Process(
            rank=rank.rank,
            argv=rank.argv or command.argv,
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

    if launch.command.launcher is None or outcome.hung:  # a hang was ended from here, not by the ranks
        return outcome
    from trainwiz.diagnose.launchers import first_failure

    here = range(launch.first_rank, launch.first_rank + launch.ranks_here)
    if outcome.exit_code == 0:
        return dataclasses.replace(outcome, codes=dict.fromkeys(here, 0))
    name = launch.run.logs / f"{_LAUNCHER_LOG}-{launch.first_rank}.log" if launch.workers else launch.run.log(0)
    failure = first_failure(tail(name))
    if failure is None:
        return outcome
    # Where only one process is started, nobody says which.
    rank, code = failure[0] or 0, failure[1]
    return dataclasses.replace(outcome, exit_code=shell_code(code), first_failed=rank, codes={rank: code})


def _blamed(launch: Launch, outcome: Outcome) -> Outcome:
    """The outcome with the rank that failed by itself, which need not be the first that was seen to end."""
    if sum(code not in (0, None) for code in outcome.codes.values()) < 2:
        return outcome
    from trainwiz.diagnose import blamed
    from trainwiz.store import logs

    return blamed(outcome, {rank: logs.lines(launch.run.log(rank)) for rank in outcome.codes})


def _end(launch: Launch, outcome: Outcome, metrics: Remembered, attempts: Sequence[Mapping[str, Any]]) -> int:
    from trainwiz.ui import outcome as ending
    from trainwiz.workflows.launch import plan_fix

    checkpoint = launch.run.checkpoint()
    verified = _verified(launch, outcome, checkpoint)
    diagnosis = diagnosed(launch, outcome) if outcome.exit_code else None
    record = {
        **outcome.to_dict(),
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "first_update_seconds": metrics.first_update_seconds,
        "peak_rank_bytes": metrics.peak.bytes(),
        "attempts": list(attempts),
        "checkpoint": checkpoint.name if checkpoint else None,
        "diagnosis": provenance.diagnosis(launch, diagnosis) if diagnosis else None,
    }
    try:
        launch.run.record("outcome", {**record, "verified": verified.to_dict()} if verified else record)
    except TrainwizError as error:
        # The training's own exit code matters more than its record.
        console.failure(error)
    launch.run.release()
    # The training's own code is the result, also where nobody is left to be told (a terminal that closed).
    with contextlib.suppress(OSError):
        ending.show(
            outcome,
            diagnosis,
            folder=near(launch.run.folder),
            first=metrics.first,
            last=metrics.last,
            checkpoint=near(checkpoint) if checkpoint else None,
            verified=verified,
            resume=launch.resume if outcome.exit_code or outcome.interrupted else None,
            log=_log(launch, diagnosis),
            fix=plan_fix.of_launch(launch, diagnosis) if diagnosis else None,
        )
    return outcome.exit_code


def _verified(launch: Launch, outcome: Outcome, checkpoint: Path | None) -> Verified | None:
    """After an orderly stop: whether what was saved can be read, within what is left of the grace."""
    if outcome.saving_seconds is None or checkpoint is None:
        return None
    from trainwiz.store import checkpoints

    return checkpoints.verify(checkpoint, seconds=launch.grace - outcome.saving_seconds - _RESERVE_SECONDS)


def diagnosed(launch: Launch, outcome: Outcome) -> Diagnosis | None:
    """What was wrong, by the log of the rank that failed first."""
    from trainwiz.cli import diagnose

    return diagnose.diagnosed(launch.run, outcome)[0] if outcome.first_failed is not None else None


def _log(launch: Launch, diagnosis: Diagnosis | None) -> str:
    from trainwiz.cli import diagnose

    return str(near(diagnose.log_of(launch.run, diagnosis.rank))) if diagnosis and diagnosis.rank is not None else ""


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
