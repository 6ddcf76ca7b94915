"""What the words of a launch's command line mean, and which of them contradict each other."""

from __future__ import annotations

import dataclasses
import sys

from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.probe import interpreter
from trainwiz.rules import selection
from trainwiz.shell_words import quoted
from trainwiz.store import runs
from trainwiz.workflows.launch.request import Request

ALL_RANKS = "all"
_LARGEST_CODE = 255
"""Of a process; a system keeps only its lowest eight bits: 256 would be 0."""
AUTO = "auto"
"""What `--resume` says where there may be nothing to continue."""


def resolved(request: Request) -> Request:
    """The request with the interpreter and the rules that its words mean. Raises `UsageError` for contradictions."""
    words = request.words
    others = words[1:]
    if others and not request.config:
        # All after the script is the script's, as with accelerate launch: typer did not read this --config.
        if others[0].startswith("-"):
            raise UsageError(
                say("{word}: after {script}, everything is an argument of the script", word=others[0], script=words[0]),
                say("put trainwiz's options first: trainwiz launch --config FILE {script}", script=quoted(words[0])),
            )
        raise UsageError(
            say("{word}: only one project can be launched at a time", word=others[0]),
            say("put arguments for the training script after --"),
        )
    _check(request)
    return dataclasses.replace(
        request,
        python=interpreter.located(request.python or sys.executable),
        ignore=selection.prefixes(request.ignore),
        arguments=others if request.config else request.arguments,
    )


def left_out(option: str, following: str) -> list[str]:
    """The value of an option that may stand alone, where what follows it is none."""
    if option == "--resume":
        return [] if following == AUTO or runs.is_name(following) else [runs.LATEST]
    if option == "--debug":
        return [] if names_ranks(following) else ["0"]
    return []


def names_ranks(word: str) -> bool:
    """Whether a word on the command line says which ranks: all, 1, or 0,2."""
    return word == ALL_RANKS or word.replace(",", "").isdecimal()


def _check(request: Request) -> None:
    if request.json and not request.dry_run:
        raise UsageError(say("--json needs --dry-run; a launch shows the training's own output"))
    if request.on_hang not in (None, "wait", "stop"):
        raise UsageError(say("--on-hang {word}: must be wait or stop", word=request.on_hang))
    if request.stopped_code > _LARGEST_CODE:
        raise UsageError(
            say("--stopped-code {code}: must be from 0 to {last}", code=request.stopped_code, last=_LARGEST_CODE)
        )
    if request.new and request.resume:
        raise UsageError(say("--new starts over and --resume continues; use only one of them"))
    if request.apply_fix and (request.config or request.json):
        raise UsageError(
            say("--apply-fix only works with trainwiz projects and cannot be combined with --config or --json")
        )
