"""`trainwiz rehearse`: the command line."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from trainwiz.language import t

_ARGUMENTS = "trainwiz.arguments"


class Command(TyperCommand):
    """Keeps the script's arguments apart: all after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the command line before typer sees it."""
        ours = args[: args.index("--")] if "--" in args else args
        ctx.meta[_ARGUMENTS] = args[len(ours) + 1 :]
        return super().parse_args(ctx, ours)


def rehearse(
    ctx: typer.Context,
    folder: str = typer.Argument(
        ".", metavar="[DIR] [-- ARGS]", help=t("The project, and values for settings of its script.")
    ),
    updates: int = typer.Option(6, "--updates", metavar="N", min=4, help=t("Updates per run.")),
    task_only: bool = typer.Option(False, "--task", help=t("Only check task.py and the schedule; do not train.")),
    as_json: bool = typer.Option(False, "--json", help=t("Print the report card as JSON.")),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("Python interpreter that runs the training.")),
    keep: str = typer.Option(
        "", "--keep", metavar="FOLDER", help=t("Keep the logs, metrics and checkpoints of the runs in FOLDER.")
    ),
) -> int:
    """Train a small shape of the project on CPU ranks, kill it, resume it, cut it otherwise; exit 1 if it differs."""
    from trainwiz.workflows.rehearse.rehearsal import Request, rehearse

    request = Request(
        folder=folder,
        updates=updates,
        as_json=as_json,
        python=python,
        task_only=task_only,
        keep=keep or None,
        arguments=ctx.meta.get(_ARGUMENTS, ()),
    )
    return rehearse(request)
