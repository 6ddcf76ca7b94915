"""`trainwiz launch`: the command line, understood; a project and a script have a workflow each."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from trainwiz.cli import options
from trainwiz.workflows.launch.request import Request


class Command(options.Command):
    """Keeps the script's arguments apart: all after `--`, and with --config all after the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the command line before typer sees it."""
        ours = args[: args.index("--")] if "--" in args else args
        if any(word == "--config" or word.startswith("--config=") for word in ours):
            ctx.allow_interspersed_args = False
            return TyperCommand.parse_args(self, ctx, args)
        return super().parse_args(ctx, [*_with_values(ours), *args[len(ours) :]])


@options.taking(Request)
def launch(request: Request) -> int:
    """Check, launch and supervise the planned world; the exit code is the training's own."""
    from trainwiz.workflows import launch

    return launch.launch(request)


def _with_values(words: list[str]) -> list[str]:
    """`--resume` alone means the newest run, `--debug` alone rank 0; the project's folder may follow either."""
    if not {"--resume", "--debug"} & set(words):
        return words
    from trainwiz.workflows.launch import usage

    completed = []
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else ""
        completed += [word, *usage.left_out(word, following)]
    return completed
