"""Tab completes values, too: tasks, strategies, recipes, keys of a plan, ids of rules, runs."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.ui import console

ASKED = "_TRAINWIZ_COMPLETE"
"""The variable by which a shell's completion script asks."""
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def install(command: Any) -> None:
    """Let each parameter offer its values, if it is a shell that started this."""
    if ASKED not in os.environ:
        return
    for subcommand in command.commands.values():
        for parameter in subcommand.params:
            # typer has a public way only for options that are declared one by one.
            parameter._custom_shell_complete = parameter._custom_shell_complete or _offered


def accept_shell(command: Any, arguments: Sequence[str]) -> None:
    """Let the shell be named behind --install-completion and --show-completion, where typer would not look at it."""
    for parameter in command.params:
        if parameter.name in ("install_completion", "show_completion"):
            option = parameter.opts[0]
            behind = arguments[arguments.index(option) + 1 :] if option in arguments else ()
            behind = list(itertools.takewhile(lambda word: not word.startswith("-"), behind))
            parameter.callback = _installed_for if parameter.name == "install_completion" else _shown_for
            parameter.callback = functools.partial(parameter.callback, option, behind)


def _installed_for(option: str, behind: Sequence[str], _context: Any, _parameter: Any, wanted: Any) -> Any:
    from typer._completion_shared import install as install_script

    if not wanted:
        return wanted
    shell, path = install_script(shell=_shell(option, behind))
    console.talk(t("Tab completion for {shell} is installed: {file}", shell=shell, file=Path(path)), style="good")
    console.talk(t("open a new terminal to use it"))
    raise typer.Exit


def _shown_for(option: str, behind: Sequence[str], _context: Any, _parameter: Any, wanted: Any) -> Any:
    from typer._completion_shared import get_completion_script

    if not wanted:
        return wanted
    console.data(get_completion_script(prog_name="trainwiz", complete_var=ASKED, shell=_shell(option, behind)))
    raise typer.Exit


def _shell(option: str, behind: Sequence[str]) -> str:
    """The named shell, or the one that started this. Raises `UsageError` for another word."""
    from typer._completion_shared import _get_shell_name

    shell = behind[0] if behind else _get_shell_name() or ""
    if len(behind) <= 1 and shell in SHELLS:
        return shell
    words = " ".join(behind) or shell
    raise UsageError(
        say("{option} does not know the shell {words}", option=option, words=words)
        if words
        else say("{option}: the current shell was not recognized", option=option),
        say("name one of: {shells}", shells=", ".join(SHELLS)),
    )


def _offered(context: Any, parameter: Any, incomplete: str) -> list[str]:
    from trainwiz.workflows import completion

    found = completion.values(context.command.name, parameter.name)
    return [value for value in found if value.startswith(incomplete)]
