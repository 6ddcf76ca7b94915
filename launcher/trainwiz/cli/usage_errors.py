"""typer's usage errors in the reader's language, with the nearest name and what to type."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from trainwiz.cli.options import ARGUMENTS
from trainwiz.errors import UsageError
from trainwiz.message import Message, say
from trainwiz.ui import console, safe

_NAMED = re.compile(r"'(?P<name>[^']+)'")


def is_usage_error(error: Exception) -> bool:
    """Whether typer raised it. From 0.27 on it has its own copy of click, so that only the class's name is known."""
    return _has_class(error, "ClickException")


def show(error: Any, program: Any, arguments: Sequence[str], *, as_json: bool) -> int:
    """Show a usage error of typer's, the help where nothing was typed; return its exit code."""
    if _has_class(error, "NoArgsIsHelpError"):
        error.show(file=sys.stderr)
    else:
        told = _without_value(error, program, arguments) or translated(error)
        console.failure(told)
        if as_json:
            console.failure_json(told, int(error.exit_code))
    return int(error.exit_code)


def translated(error: Any) -> UsageError:
    """A usage error of typer's as one of ours."""
    context = error.ctx
    path = context.command_path if context else "trainwiz"
    problem = _problem(error, context)
    return UsageError(problem, _remedy(error, context, path, guessed="near" in problem.values))


def _without_value(error: Any, program: Any, arguments: Sequence[str]) -> UsageError | None:
    """An option without its value: what its help says of the values. The parser does not tell the command."""
    name = getattr(error, "option_name", None)
    if not name or "requires" not in error.format_message():
        return None
    command = next((program.commands[word] for word in arguments if word in program.commands), program)
    option = next((each for each in command.params if name in each.opts), None)
    if option is None or not option.help:
        return None
    help = " ".join(option.help.split())
    return UsageError(
        _problem(error, None), say("{option} {metavar}: {help}", option=name, metavar=option.metavar, help=help)
    )


def _remedy(error: Any, context: Any, path: str, *, guessed: bool) -> Message:
    name = getattr(error, "option_name", None)
    if name and not guessed and context and ARGUMENTS in context.meta and "_" in name:
        return say(
            "arguments of the training script go after --, for example: {command} DIR -- {word} …; to list the "
            "options, run: {command} --help",
            command=path,
            word=name,
        )
    return say("run: {command} --help", command=path)


def _has_class(error: Exception, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _problem(error: Any, context: Any) -> Message:
    words = error.format_message()
    name = getattr(error, "option_name", None)
    named = _NAMED.search(words)
    if name and "No such option" in words:
        options = [word for parameter in context.command.params for word in parameter.opts]
        return _unknown(name, options, say("unknown option {word}", word=name))
    if name and "requires" in words:
        return say("{option} needs a value", option=name)
    if name and "does not take" in words:
        return say("{option} takes no value", option=name)
    if named and "No such command" in words:
        word = named["name"]
        return _unknown(word, context.command.commands, say("unknown command {word}", word=word))
    if named and "Missing argument" in words:
        return say("missing argument {name}", name=named["name"])
    if "extra argument" in words:
        given = words.rpartition("(")[2].rstrip(")").split(" ")
        return say("unexpected arguments: {words}", words=safe.arguments(given))
    if named and "Invalid value for" in words:
        return say("{option}: {problem}", option=named["name"], problem=_number(words))
    return say("{problem}", problem=words)


def _unknown(word: str, known: Iterable[str], problem: Message) -> Message:
    # A name of the script's settings has _ and resembles an option only where that was mistyped.
    # Without their dashes, by which all options resemble each other.
    names = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), list(names), n=1, cutoff=0.85 if "_" in word else 0.6)
    return say("{problem}; did you mean {near}?", problem=problem, near=names[near[0]]) if near else problem


def _number(words: str) -> Message | str:
    """What is wrong with a value; options that are not texts are numbers."""
    if "valid number" in words or "valid float" in words:
        return say("not a number")
    if "valid integer" in words:
        return say("not an integer")
    if limit := re.search(r"greater than or equal to (\S+)|range x>=(\S+?)\.?$", words):
        return say("must be at least {limit}", limit=limit[1] or limit[2])
    return words.partition(": ")[2]
