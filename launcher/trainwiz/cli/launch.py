"""`trainwiz launch`: the command line. What it does with a project is in `world`, with other scripts in `foreign`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from trainwiz.cli import launch_options as options
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.rules import selection

_ARGUMENTS = "trainwiz.arguments"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line, understood. `resume` is empty, `latest`, or a run's name; None leaves it to the plan."""

    folder: str
    arguments: tuple[str, ...]
    resume: str
    new: bool
    dry_run: bool
    as_json: bool
    python: str
    ignore: tuple[str, ...]
    grace: float
    max_restarts: int | None
    restarts_per_hour: int
    auto_batch: bool
    spares: bool
    debug: str
    on_hang: str | None
    hang_limit: float | None
    machine_file: str | None
    machine_rank: int | None
    wait: float


class Command(TyperCommand):
    """Keeps the script's arguments apart: all after `--`, and with --config all after the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the command line before typer sees it."""
        ours = args[: args.index("--")] if "--" in args else args
        if any(word == "--config" or word.startswith("--config=") for word in ours):
            ctx.allow_interspersed_args = False
            return super().parse_args(ctx, args)
        ctx.meta[_ARGUMENTS] = args[len(ours) + 1 :]
        return super().parse_args(ctx, _with_values(ours))


def launch(
    ctx: typer.Context,
    words: options.Words = None,
    resume: options.Resume = "",
    new: options.New = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    python: options.Python = "",
    ignore: options.Ignore = None,
    grace: options.Grace = 30.0,
    max_restarts: options.MaxRestarts = None,
    restarts_per_hour: options.RestartsPerHour = 10,
    spares: options.Spares = False,
    auto_batch: options.AutoBatch = False,
    debug: options.Debug = "",
    on_hang: options.OnHang = None,
    hang_limit: options.HangLimit = None,
    apply_fix: options.ApplyFix = False,
    machine: options.Machine = "",
    machine_rank: options.MachineRank = None,
    wait: options.Wait = 30.0,
    config: options.Config = "",
) -> None:
    """Check, launch and supervise the planned world; the exit code is the training's own."""
    words = words or []
    if json and not dry_run:
        raise UsageError(say("--json goes with --dry-run; a launch shows the training's own output"))
    if on_hang not in (None, "wait", "stop"):
        raise UsageError(say("--on-hang {word}: wait or stop", word=on_hang))
    if new and resume:
        raise UsageError(say("--new starts anew and --resume goes on: one of them"))
    if len(words) > 1 and not config:
        raise UsageError(
            say("{word}: one project at a time", word=words[1]),
            say("arguments for the training script go after --"),
        )
    if apply_fix and (config or json):
        raise UsageError(say("--apply-fix is for projects of trainwiz, and goes with neither --config nor --json"))
    wanted = Options(
        folder=words[0] if words and not config else ".",
        arguments=tuple(words[1:] if config else ctx.meta.get(_ARGUMENTS, ())),
        resume=resume,
        new=new,
        dry_run=dry_run,
        as_json=json,
        python=interpreter(python),
        ignore=selection.prefixes(ignore or ()),
        grace=grace,
        max_restarts=max_restarts,
        restarts_per_hour=restarts_per_hour,
        auto_batch=auto_batch,
        spares=spares,
        debug=debug,
        on_hang=on_hang,
        hang_limit=hang_limit,
        machine_file=machine or None,
        machine_rank=machine_rank,
        wait=wait,
    )
    if config:
        from trainwiz.workflows.launch import script

        raise typer.Exit(script.launch(wanted, config=config, script=words[0] if words else ""))
    from trainwiz.workflows.launch import project

    if apply_fix:
        from trainwiz.workflows.launch import plan_fix

        mended = plan_fix.apply(wanted)
        if mended is None:
            raise typer.Exit(0)
        wanted = mended
    raise typer.Exit(project.launch(wanted))


def _with_values(words: list[str]) -> list[str]:
    """`--resume` alone means the newest run, `--debug` alone rank 0; the project's folder may follow either."""
    from trainwiz.store import runs
    from trainwiz.workflows.launch import debugger

    completed = []
    for i, word in enumerate(words):
        completed.append(word)
        following = words[i + 1] if i + 1 < len(words) else ""
        if word == "--resume" and not runs.is_name(following):
            completed.append(runs.LATEST)
        if word == "--debug" and not debugger.is_value(following):
            completed.append("0")
    return completed


def interpreter(python: str) -> str:
    """The path of the Python that was asked for; ours where none was."""
    # Not resolved: a virtual environment's python is a link, and its place decides what it imports.
    if not python:
        return sys.executable
    if os.sep not in python:
        import shutil

        return shutil.which(python) or python
    return os.path.abspath(os.path.expanduser(python))
