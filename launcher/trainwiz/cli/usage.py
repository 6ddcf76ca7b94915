"""Help and usage errors as the reader wants them: in their language, and in lines that fit the terminal.

typer's own are English, and its lines are counted in characters, of which a Chinese one takes two columns.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from trainwiz import columns
from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.message import Message, say

_BRACKETS = re.compile(r"(?:\[(\[.*\])\]|\{(.*)\})(?:\.\.\.)?$")
_DOTS = re.compile(r"(…\])\.\.\.$")
_TYPE = re.compile(r" <(?:str|list\[str\])>$")
_DEFAULT = re.compile(r"\[default: (?P<value>.*?)(?:; [^\]]*)?\]$")
_NAMED = re.compile(r"'(?P<name>[^']+)'")


def dress(command: Any) -> Any:
    """The command, subcommands included, with help in the reader's language."""
    command.context_class = _context(command.context_class)
    # The list of commands would cut it off.
    command.short_help = command.short_help or command.help
    for subcommand in getattr(command, "commands", {}).values():
        dress(subcommand)
    return command


def explained(error: Any) -> UsageError:
    """A usage error of typer's (it has several classes, and two copies of each) as one of ours."""
    context = error.ctx
    path = context.command_path if context else "trainwiz"
    return UsageError(_problem(error, context), say("{command} --help", command=path))


def _problem(error: Any, context: Any) -> Message:
    words = error.format_message()
    name = getattr(error, "option_name", None)
    named = _NAMED.search(words)
    if name and "No such option" in words:
        options = [word for parameter in context.command.params for word in parameter.opts]
        return _unknown(name, options, say("there is no option {word}", word=name))
    if name and "requires" in words:
        return say("{option} needs a value", option=name)
    if name and "does not take" in words:
        return say("{option} takes no value", option=name)
    if named and "No such command" in words:
        word = named["name"]
        return _unknown(word, context.command.commands, say("there is no command {word}", word=word))
    if "extra argument" in words:
        return say("too many words: {words}", words=words.rpartition("(")[2].rstrip(")"))
    if named and "Invalid value for" in words:
        return say("{option}: {problem}", option=named["name"], problem=_number(words))
    return say("{problem}", problem=words)


def _unknown(word: str, known: Iterable[str], problem: Message) -> Message:
    near = difflib.get_close_matches(word, list(known), n=1)
    return say("{problem}; did you mean {near}?", problem=problem, near=near[0]) if near else problem


def _number(words: str) -> Message | str:
    """What typer says of a value; all options that are no text are numbers."""
    if "valid number" in words or "valid float" in words:
        return say("not a number")
    if "valid integer" in words:
        return say("not a whole number")
    if limit := re.search(r"greater than or equal to (\S+)|range x>=(\S+?)\.?$", words):
        return say("must be at least {limit}", limit=limit[1] or limit[2])
    return words.partition(": ")[2]


def _context(base: Any) -> Any:
    methods = {
        "write_usage": _write_usage,
        "write_heading": _write_heading,
        "write_text": _write_text,
        "write_dl": _write_list,
    }
    return type(base.__name__, (base,), {"formatter_class": type("Formatter", (base.formatter_class,), methods)})


def _write_usage(formatter: Any, program: str, arguments: str = "", prefix: str | None = None) -> None:
    # typer puts brackets around what has them already, and dots behind what says itself that it may be repeated.
    words = _DOTS.sub(r"\1", _BRACKETS.sub(lambda found: found[1] or found[2], arguments))
    first = f"{prefix or t('Usage:')} {program} "
    for line in columns.wrap(words, formatter.width, first=first, rest=" " * columns.width(first)):
        formatter.write(f"{line}\n")


def _write_heading(formatter: Any, heading: str) -> None:
    known = {"Arguments": t("Arguments"), "Options": t("Options"), "Commands": t("Commands")}
    formatter.write(f"{' ' * formatter.current_indent}{known.get(heading, heading)}:\n")


def _write_text(formatter: Any, text: str) -> None:
    indent = " " * formatter.current_indent
    for line in columns.wrap(text, formatter.width, first=indent, rest=indent):
        formatter.write(f"{line}\n")


def _write_list(formatter: Any, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
    shown = [(_TYPE.sub("", first), _in_language(second)) for first, second in rows]
    width = min(max(columns.width(first) for first, _ in shown), col_max) + col_spacing
    indent = " " * formatter.current_indent
    for first, second in shown:
        head, rest = f"{indent}{columns.pad(first, width)}", " " * (len(indent) + width)
        if columns.width(first) > width - col_spacing:
            formatter.write(f"{indent}{first}\n")
            head = rest
        for line in columns.wrap(second, formatter.width, first=head, rest=rest):
            formatter.write(f"{line.rstrip()}\n")


def _in_language(words: str) -> str:
    if words == "Show this message and exit.":
        return t("Show this help.")
    if words.endswith("[required]"):
        return f"{words.removesuffix('[required]').rstrip()} {t('[required]')}"
    default = _DEFAULT.search(words)
    if not default:
        return words
    return f"{words[: default.start()].rstrip()} {t('[default: {value}]', value=default['value'].removesuffix('.0'))}"
