"""Help in the reader's language, in lines that fit the terminal.

typer's own is English, and its lines are counted in characters, of which a Chinese one takes two columns.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from typing import Any

from trainwiz import columns
from trainwiz.cli import examples
from trainwiz.language import t, text

_BRACKETS = re.compile(r"(?:\[(\[.*\])\]|\{(.*)\})(?:\.\.\.)?$")
_DOTS = re.compile(r"(…\])\.\.\.$")
_TYPE = re.compile(r" <(?:str|list\[str\])>$")
_DEFAULT = re.compile(r"\[default: (?P<value>.*?)(?:; [^\]]*)?\]$")


def install(command: Any) -> None:
    """Let a command and its subcommands show their help this way."""
    command.context_class = _context(command.context_class)
    command.format_epilog = types.MethodType(_write_examples, command)
    if hasattr(command, "commands"):
        command.format_commands = types.MethodType(_write_groups, command)
    # The list of commands would cut it off.
    command.short_help = command.short_help or command.help
    for subcommand in getattr(command, "commands", {}).values():
        install(subcommand)


def _write_groups(command: Any, _context: Any, formatter: Any) -> None:
    """The list of commands, by what they are for."""
    for heading, names in examples.GROUPS:
        rows = [(name, command.commands[name].short_help) for name in names if name in command.commands]
        if rows:
            with formatter.section(text(heading)):
                formatter.write_dl(rows)


def _write_examples(command: Any, _context: Any, formatter: Any) -> None:
    shown = examples.FIRST if hasattr(command, "commands") else examples.OF_COMMAND.get(command.name, ())
    if shown:
        with formatter.section(t("Examples")):
            indent = " " * formatter.current_indent
            for line in shown:
                parts = columns.wrap(line, formatter.width - 2, first=indent, rest=f"{indent}    ")
                formatter.write(" \\\n".join(part.rstrip() for part in parts) + "\n")


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
    first = f"{prefix or t('Usage: ')}{program} "
    for line in columns.wrap(words, formatter.width, first=first, rest=" " * columns.width(first)):
        formatter.write(f"{line}\n")


def _write_heading(formatter: Any, heading: str) -> None:
    known = {"Arguments": t("Arguments"), "Options": t("Options")}
    formatter.write(f"{' ' * formatter.current_indent}{t('{heading}:', heading=known.get(heading, heading))}\n")


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
    # What typer says of its own options.
    if words == "Show this message and exit.":
        return t("Show this help.")
    if words.startswith("Install completion"):
        return t("Install Tab completion for the current shell, or for the one named behind it.")
    if words.startswith("Show completion"):
        return t("Print the completion script of the current shell, or of the one named behind it.")
    if words.endswith("[required]"):
        return f"{words.removesuffix('[required]').rstrip()} {t('[required]')}"
    default = _DEFAULT.search(words)
    if not default:
        return words
    said = words[: default.start()].rstrip()
    if t("default") in said:
        return said
    return f"{said} {t('[default: {value}]', value=default['value'].removesuffix('.0'))}"
