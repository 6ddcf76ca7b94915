"""Shell scripts that start trainings: the options of `#SBATCH` lines and of the launching commands, with positions.

A script becomes a mapping like that of a YAML file. `sbatch` holds the options of the `#SBATCH` lines, `variables` what
is exported or assigned, `launcher` the options of torchrun, accelerate or deepspeed with its name as `program`, and
`srun` says how many tasks srun starts, where it says so itself. The arguments of a program that is a tool of its own
(`swift sft`) stand at the top.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainwiz.config import commands, shell_values
from trainwiz.config.commands import Command
from trainwiz.config.document import Document, Entry, KeyPath, Span

_DIRECTIVE = re.compile(r"(?m)^#SBATCH[ \t]+(.*)$")
_HEREDOC = re.compile(r"(?ms)<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(?P<body>.*?)^\s*\2\s*$")
"""Lines that a script hands to a program, or writes into another file."""
_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus_per_task",
    "t": "time",
    "G": "gpus",
    "o": "output",
    "e": "error",
    "J": "job_name",
    "p": "partition",
}
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch")
_NUMBER = re.compile(r"-?\d{1,18}")
Enter = Callable[[KeyPath, str, Span], None]


def read(path: str, text: str) -> Document:
    """What a script says of a training; empty where it starts none."""
    values: dict[str, Any] = {}
    entries: dict[KeyPath, Entry] = {}

    def enter(keys: KeyPath, value: str, span: Span) -> None:
        here = values
        for key in keys[:-1]:
            here = here.setdefault(key, {})
            entries.setdefault((key,), Entry(span, span))
        here[keys[-1]] = int(value) if _NUMBER.fullmatch(value) else value
        entries[keys] = Entry(span, span)

    inner = [found.span("body") for found in _HEREDOC.finditer(text)]
    directives = list(_DIRECTIVE.finditer(text))
    own = [line for line in directives if not any(start <= line.start() < end for start, end in inner)]
    for line in own or directives:
        for name, value in _options(line[1]):
            enter(("sbatch", name), value, Span(line.start(), line.end()))
    arrays = shell_values.arrays_of(text)
    all_commands = list(commands.commands(arrays.text))
    known = shell_values.variables_of(text, all_commands)
    used: set[str] = set()

    def say(keys: KeyPath, value: str, span: Span) -> None:
        if len(keys) > 1:
            enter(keys, value, span)
            return
        enter(keys, shell_values.expanded(value, known, used), span)
        values[keys[0]] = {"true": True, "false": False}.get(str(values[keys[0]]).lower(), values[keys[0]])

    first = None
    for command in all_commands:
        if command.words:
            first = first or command.words[0].span
            _launch(replace(command, words=tuple(arrays.spread(command.words))), say)
    for command in all_commands:
        for name, value in command.assignments.items():
            if name and name not in used and (not command.words or name.isupper()):
                at = command.words[0].span if command.words else Span(0, 0)
                enter(("variables", name), value, _assigned(text, name, at))
    for name, more in arrays.perhaps.items():
        if more and "program" in values:
            enter(("perhaps", name), " ".join(word.text for word in more), more[0].span)
    late = [line for line in own if first and line.start() > first.start]
    if late:
        enter(("late",), late[0][1].strip(), Span(late[0].start(), late[0].end()))
    return Document(path=path, text=text, syntax="shell", values=values, entries=entries)


def _options(line: str) -> list[tuple[str, str]]:
    words = line.partition(" #")[0].split()
    found = []
    while words:
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and len(name) > 1 and not equals:
            name, value, equals = name[0], name[1:], "="
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        found.append((_SHORT.get(name, name.replace("-", "_")), value or "true"))
    return found


def _assigned(text: str, name: str, otherwise: Span) -> Span:
    found = re.search(rf"(?m)\b{name}=[^\s]*", text)
    return Span(found.start(), found.end()) if found else otherwise


def _launch(command: Command, enter: Enter, under_srun: bool = False) -> None:
    words = [word.text for word in command.words]
    if not words:
        return
    names = [word.rpartition("/")[2] for word in words]
    if names[0] == "srun":
        under_srun = True
        if own := next((word for word in command.words if word.text.startswith(("--ntasks", "-n"))), None):
            enter(("srun", "tasks"), own.text, own.span)
    if names[0] == "swift" and len(words) > 1:
        enter(("program",), " ".join(words[:2]), command.words[0].span)
        for name, (value, span) in command.arguments(2).items():
            enter((name,), value, span)
        return
    for word in command.words[1:]:
        for inner in commands.commands(word.text) if " " in word.text else ():
            _launch(inner, functools.partial(_at, enter, word.span), under_srun)
    at = next((i for i, name in enumerate(names) if name in _LAUNCHERS), None)
    if at is not None and not (names[at] == "accelerate" and "launch" not in names[at : at + 2]):
        enter(("launcher", "program"), names[at], command.words[at].span)
        enter(("launcher", "under_srun"), str(under_srun).lower(), command.words[0].span)
        for name, (value, span) in command.arguments(at + 1).items():
            enter(("launcher", name), value, span)


def _at(enter: Enter, whole: Span, keys: KeyPath, value: str, _: Span) -> None:
    """Enter what stands in a quoted command at the quotes."""
    enter(keys, value, whole)
