"""Machines in files: the output of `trainwiz doctor --json` on another machine, to plan for it here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.errors import UsageError
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.store.records import Malformed, build, plain


def read(path: str | Path) -> Machine:
    """The machine in a JSON file, by itself or under the key `machine`, as doctor prints it; `probed` is False.

    Raises `UsageError`, which names every wrong or unknown key.
    """
    try:
        values = json.loads(files.read_text(path))
    except OSError as error:
        raise UsageError(say("{path}: cannot be read: {problem}", path=path, problem=error.strerror), _how()) from None
    except UnicodeDecodeError:
        raise UsageError(say("{path}: not a text file", path=path), _how()) from None
    except json.JSONDecodeError as error:
        message = say("{path}, line {line}: not valid JSON: {problem}", path=path, line=error.lineno, problem=error.msg)
        raise UsageError(message, _how()) from None
    except RecursionError:
        raise UsageError(say("{path}: nested too deeply", path=path), _how()) from None
    if isinstance(values, dict) and isinstance(values.get("machine"), dict):
        values = values["machine"]
    try:
        machine = build(Machine, values)
    except Malformed as wrong:
        raise _malformed(path, wrong.problems) from None
    return dataclasses.replace(machine, probed=False)


def to_dict(machine: Machine) -> dict[str, Any]:
    """The machine as plain JSON values, which `read` understands."""
    values: dict[str, Any] = plain(machine)
    return values


def _malformed(path: str | Path, problems: tuple[Message, ...]) -> UsageError:
    listed = say("{first}", first=problems[0])
    for problem in problems[1:10]:
        listed = say("{before}\n  {problem}", before=listed, problem=problem)
    return UsageError(
        say(
            "{path}: not a machine description; invalid values: {n}\n  {listed}",
            path=path,
            n=len(problems),
            listed=listed,
        ),
        _how(),
    )


def _how() -> Message:
    return say("create the file on that machine: `trainwiz doctor --json > machine.json`")
