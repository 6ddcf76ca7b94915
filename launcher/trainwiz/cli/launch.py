"""`trainwiz launch`: the command line. What it does with a project is in `world`, with other scripts in `foreign`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trainwiz.cli import rule_ids
from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.message import say

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
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [-- ARGS]",
            help=t("The project (default: here) and arguments for its script; with --config: SCRIPT [ARGS]."),
        ),
    ] = None,
    resume: str = typer.Option(
        "", "--resume", metavar="[RUN]", help=t("Continue the newest run, or the one named, from its last checkpoint.")
    ),
    new: bool = typer.Option(False, "--new", help=t("Start anew, also where the newest run was preempted.")),
    dry_run: bool = typer.Option(False, "--dry-run", help=t("Show what would be done; start and write nothing.")),
    json: bool = typer.Option(False, "--json", help=t("With --dry-run: as JSON.")),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The Python that runs the training.")),
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="PREFIX", help=t("Leave out rules whose id starts so; may be given repeatedly.")
        ),
    ] = None,
    grace: float = typer.Option(
        30.0, "--grace", metavar="S", min=0.0, help=t("After Ctrl-C: seconds that the ranks get to save and end.")
    ),
    max_restarts: int | None = typer.Option(
        None,
        "--max-restarts",
        metavar="N",
        min=0,
        help=t("After a failure that may pass: go on from the newest checkpoint, at most N times (else by the plan)."),
    ),
    restarts_per_hour: int = typer.Option(
        10, "--restarts-per-hour", metavar="N", min=1, help=t("With --max-restarts: at most so many within an hour.")
    ),
    spares: bool = typer.Option(
        False,
        "--spares",
        help=t("With --max-restarts: a process per rank waits with all imports done, so that a restart is quicker."),
    ),
    auto_batch: bool = typer.Option(
        False,
        "--auto-batch",
        help=t("On out of memory: halve the micro-batch and double the accumulation; the real batch stays."),
    ),
    debug: str = typer.Option(
        "",
        "--debug",
        metavar="[RANK|all]",
        help=t(
            "Rank 0, the one named, several (0,2) or all wait for a debugger; the others wait for them, however long."
        ),
    ),
    on_hang: str | None = typer.Option(
        None,
        "--on-hang",
        metavar="wait|stop",
        help=t(
            "When no progress comes: only say where each rank is, or also end the run, exit code 124 "
            "(else by the plan)."
        ),
    ),
    hang_limit: float | None = typer.Option(
        None,
        "--hang-limit",
        metavar="S",
        min=0.0,
        help=t("Seconds of silence that count as a hang (0: learned from the run, at least 300; else by the plan)."),
    ),
    apply_fix: bool = typer.Option(
        False,
        "--apply-fix",
        help=t("Change the plan as the newest run's failure asks, show the change, and launch again."),
    ),
    machine: str = typer.Option("", "--machine", metavar="FILE", help=t("With --dry-run: a machine from a file.")),
    machine_rank: int | None = typer.Option(
        None,
        "--machine-rank",
        metavar="N",
        help=t("Of several machines: which one this is, from 0 (Slurm says it, too)."),
    ),
    wait: float = typer.Option(
        30.0, "--wait", metavar="S", min=0.1, help=t("Of several machines: seconds to wait for the others.")
    ),
    config: str = typer.Option(
        "",
        "--config",
        metavar="FILE",
        help=t("Launch SCRIPT [ARGS] by an accelerate configuration, without a project."),
    ),
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
    options = Options(
        folder=words[0] if words and not config else ".",
        arguments=tuple(words[1:] if config else ctx.meta.get(_ARGUMENTS, ())),
        resume=resume,
        new=new,
        dry_run=dry_run,
        as_json=json,
        python=_interpreter(python),
        ignore=rule_ids.prefixes(ignore or ()),
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
        from trainwiz.cli import foreign

        raise typer.Exit(foreign.launch(options, config=config, script=words[0] if words else ""))
    from trainwiz.cli import world

    if apply_fix:
        from trainwiz.cli import remedy

        mended = remedy.apply(options)
        if mended is None:
            raise typer.Exit(0)
        options = mended
    raise typer.Exit(world.launch(options))


def _with_values(words: list[str]) -> list[str]:
    """`--resume` alone means the newest run, `--debug` alone rank 0; the project's folder may follow either."""
    from trainwiz.cli import debugging
    from trainwiz.store import runs

    completed = []
    for i, word in enumerate(words):
        completed.append(word)
        following = words[i + 1] if i + 1 < len(words) else ""
        if word == "--resume" and not runs.is_name(following):
            completed.append(runs.LATEST)
        if word == "--debug" and not debugging.is_value(following):
            completed.append("0")
    return completed


def _interpreter(python: str) -> str:
    # Not resolved: a virtual environment's python is a link, and its place decides what it imports.
    if not python:
        return sys.executable
    if os.sep not in python:
        import shutil

        return shutil.which(python) or python
    return os.path.abspath(os.path.expanduser(python))
