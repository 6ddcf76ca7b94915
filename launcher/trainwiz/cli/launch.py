"""`trainwiz launch`: the command line, understood; a project and a script have a workflow each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from trainwiz.cli import launch_options
from trainwiz.errors import UsageError
from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.workflows.launch.request import Request

_ARGUMENTS = "trainwiz.arguments"


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


@launch_options.taking(launch_options.Options)
def launch(ctx: typer.Context, **options: Any) -> int:
    """Check, launch and supervise the planned world; the exit code is the training's own."""
    from trainwiz.workflows import launch

    request = _request(ctx, **options)
    _check_usage(request)
    return launch.launch(request)


def _request(ctx: typer.Context, words: list[str] | None, config: str, **options: Any) -> Request:
    from trainwiz.rules import selection
    from trainwiz.workflows import interpreter
    from trainwiz.workflows.launch.request import Request

    first, *others = words or [""]
    if others and not config:
        raise UsageError(
            say("{word}: one project at a time", word=others[0]),
            say("arguments for the training script go after --"),
        )
    options["python"] = interpreter.path_of(options["python"])
    options["ignore"] = selection.prefixes(options["ignore"] or ())
    return Request(
        folder="." if config else first or ".",
        config=config,
        script=first if config else "",
        arguments=tuple(others if config else ctx.meta.get(_ARGUMENTS, ())),
        **options,
    )


def _check_usage(request: Request) -> None:
    if request.json and not request.dry_run:
        raise UsageError(say("--json goes with --dry-run; a launch shows the training's own output"))
    if request.on_hang not in (None, "wait", "stop"):
        raise UsageError(say("--on-hang {word}: wait or stop", word=request.on_hang))
    if request.new and request.resume:
        raise UsageError(say("--new starts anew and --resume goes on: one of them"))
    if request.apply_fix and (request.config or request.json):
        raise UsageError(say("--apply-fix is for projects of trainwiz, and goes with neither --config nor --json"))


def _with_values(words: list[str]) -> list[str]:
    """`--resume` alone means the newest run, `--debug` alone rank 0; the project's folder may follow either."""
    completed = []
    for i, word in enumerate(words):
        completed.append(word)
        following = words[i + 1] if i + 1 < len(words) else ""
        if word == "--resume":
            from trainwiz.store import runs

            completed += [] if runs.is_name(following) else [runs.LATEST]
        if word == "--debug":
            from trainwiz.workflows.launch import debugger

            completed += [] if debugger.is_value(following) else ["0"]
    return completed
