"""`trainwiz rehearse`: the command line. What it does is in `rehearsing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.message import say

_ARGUMENTS = "trainwiz.arguments"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line, understood. `by_hand` are fields of Config with their texts."""

    folder: str
    updates: int
    as_json: bool
    python: str
    task_only: bool
    keep: str | None
    by_hand: dict[str, str]


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
        ".", metavar="[DIR] [-- ARGS]", help=t("The project, and values for its script's settings.")
    ),
    updates: int = typer.Option(6, "--updates", metavar="N", min=4, help=t("Updates of each run.")),
    task_only: bool = typer.Option(False, "--task", help=t("Only look at task.py and the schedule; train nothing.")),
    as_json: bool = typer.Option(False, "--json", help=t("The report card as JSON.")),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The Python that runs the training.")),
    keep: str = typer.Option("", "--keep", metavar="FOLDER", help=t("Keep the runs' logs, metrics and checkpoints.")),
) -> None:
    """Train a small shape of the project on CPU ranks, kill it, resume it, cut it otherwise; exit 1 if it differs."""
    from trainwiz.workflows.rehearse import report

    options = Options(
        folder=folder,
        updates=updates,
        as_json=as_json,
        python=python,
        task_only=task_only,
        keep=keep or None,
        by_hand=_by_hand(ctx.meta.get(_ARGUMENTS, ())),
    )
    raise typer.Exit(report.rehearse(options))


def _by_hand(words: Any) -> dict[str, str]:
    joined = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    names, values = joined[::2], joined[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise UsageError(
            say("{words}: settings of the script are written --name value", words=" ".join(words)),
            say("trainwiz rehearse DIR -- --hidden_size 32"),
        )
    return {name[2:]: value for name, value in zip(names, values, strict=True)}
