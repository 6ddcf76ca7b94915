"""Tab completes values, too: tasks, strategies, recipes, keys of a plan, ids of rules, runs."""

from __future__ import annotations

import os
from typing import Any

ASKED = "_TRAINWIZ_COMPLETE"
"""The variable by which a shell's completion script asks."""


def install(command: Any) -> None:
    """Let each parameter offer its values, if it is a shell that started this."""
    if ASKED not in os.environ:
        return
    for subcommand in command.commands.values():
        for parameter in subcommand.params:
            # typer has a public way only for options that are declared one by one.
            parameter._custom_shell_complete = parameter._custom_shell_complete or _offered


def _offered(context: Any, parameter: Any, incomplete: str) -> list[str]:
    from trainwiz.workflows import completion

    found = completion.values(context.command.name, parameter.name)
    return [value for value in found if value.startswith(incomplete)]
