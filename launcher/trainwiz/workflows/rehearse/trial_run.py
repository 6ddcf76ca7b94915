"""One run of a rehearsal: its ranks are started and watched, and what they leave is read."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import command as commands
from trainwiz import diagnose, plan, strategies
from trainwiz.command import Command
from trainwiz.errors import Ended
from trainwiz.machine import Machine
from trainwiz.message import Message
from trainwiz.network import ports
from trainwiz.outcome import Outcome
from trainwiz.probe import rehearsal
from trainwiz.process import ranks
from trainwiz.process.child import Process
from trainwiz.process.watch import Watching
from trainwiz.rehearsal.result import RunResult
from trainwiz.rehearsal.setup import Setup, TrialRun
from trainwiz.store import logs, rehearsals
from trainwiz.store.jsonl import JsonLines
from trainwiz.store.rehearsals import Workspace

HANGING_SECONDS = 60.0
"""A run without a sign of life for this long (three times as long before the first update) is ended."""
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What all runs of a rehearsal share."""

    folder: Path
    """The project."""
    python: str
    """The Python that trains."""
    workspace: Workspace
    """The temporary folder of its runs."""
    machine: Machine
    """This one."""


def train(environment: Environment, setup: Setup, run: TrialRun) -> RunResult:
    """Run it to its end. Raises `KeyboardInterrupt` after Ctrl-C, `Ended` after another signal."""
    output = environment.workspace.place(run.resumes or run.name)
    notes = environment.workspace.place(f"{run.name}-notes")
    outcome = _run(environment, setup, run, output, notes)
    cause, remedy, log = _why(outcome, notes) if outcome.exit_code and not run.killed_at else (None, None, "")
    if outcome.signal is not None:
        raise KeyboardInterrupt if outcome.signal == signal.SIGINT else Ended(outcome.signal)
    checkpoints, damaged = rehearsals.checkpoints_in(output)
    return RunResult(
        run=run,
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        records=JsonLines(output / "metrics.jsonl").new(),
        weights=rehearsals.weights(output),
        notes=rehearsals.notes(notes),
        checkpoints=checkpoints,
        damaged=damaged,
        cause=cause,
        remedy=remedy,
        log=log,
    )


def _run(environment: Environment, setup: Setup, run: TrialRun, output: Path, notes: Path) -> Outcome:
    instructions = notes / "instructions.json"
    asked = {
        "samples": setup.samples,
        "notes": str(notes),
        "gloo": setup.sharded,
        "without_dropout": run.without_dropout,
        "same_noise": run.without_dropout and setup.random_loss,
        "kill_at": run.killed_at,
    }
    instructions.write_text(json.dumps(asked), encoding="utf-8")
    with ports.claim(0) as port:
        arguments = [str(instructions), *setup.arguments(run, str(output))]
        command = _command(environment, setup, run, port.number, arguments)
        watching = Watching(
            files=lambda: sorted(notes.glob("rank-*.log")),
            metrics=output / "metrics.jsonl",
            stacks=notes,
            ranks=tuple(rank.rank for rank in command.ranks),
            floor=HANGING_SECONDS,
            stop=True,
        )
        return ranks.run(
            _processes(command, setup, notes), audience=_Silence(), grace=_GRACE_SECONDS, watching=watching
        )


def _command(environment: Environment, setup: Setup, run: TrialRun, port: int, arguments: list[str]) -> Command:
    changes: dict[str, Any] = {"machine.num_processes": run.split.world}
    if strategies.of(setup.plan).one_rank and run.split.world > 1:
        changes["strategy.kind"] = "ddp"
    return commands.for_plan(
        plan.with_changes(setup.plan, changes),
        python=environment.python,
        folder=str(environment.folder),
        script=str(rehearsal.RANK),
        arguments=arguments,
        port=port,
        machine=environment.machine,
        inherited=os.environ,
    )


def _processes(command: Command, setup: Setup, notes: Path) -> list[Process]:
    added = dict(rehearsal.CPU_ONLY)
    if strategies.of(setup.plan).needs_process_group:
        del added["ACCELERATE_USE_CPU"]  # would turn sharding off
    if setup.sharded:
        added["ACCELERATE_TORCH_DEVICE"] = "cpu"
    return [
        Process(
            rank=rank.rank,
            argv=command.argv,
            environ={**command.environ, **rank.environ, **added},
            cwd=command.cwd,
            log=notes / f"rank-{rank.rank}.log",
        )
        for rank in command.ranks
    ]


class _Silence:
    """Shows nothing of a rehearsal's ranks; their logs are read if something fails."""

    def output(self, data: bytes) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def say(self, message: Message) -> None:
        """Nothing."""


def _why(outcome: Outcome, notes: Path) -> tuple[Message | None, Message | None, str]:
    rank = outcome.first_failed or 0
    log = notes / f"rank-{rank}.log"
    found = diagnose.diagnose(outcome, {rank: logs.lines(log)}, log=str(log))
    return (found.cause, found.remedy, str(log)) if found else (None, None, str(log))
