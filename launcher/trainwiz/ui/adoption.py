"""The result of an import: how much was taken over, and everything that was not, with its line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwiz.language import t, text
from trainwiz.record import redaction
from trainwiz.ui import console
from trainwiz.vocabulary import spelled

if TYPE_CHECKING:
    from trainwiz.adoption import Carried, Left
    from trainwiz.decide import Decided


def show(files: Sequence[str], carried: int, left: Sequence[Left], decided: Decided) -> None:
    """On stderr: what was left out, grouped by what to do about it."""
    settings = len(decided.plan.deepspeed)
    words = t(
        "{files}: imported plan keys: {n}, DeepSpeed settings: {settings}",
        files=", ".join(files),
        n=carried,
        settings=settings,
    )
    console.talk(words)
    heads = {
        "unknown": t("cannot be expressed in a plan:"),
        "code": t("to be written in task.py:"),
        "lost": t("different in this project:"),
        "open": t("known only to your script; the plan decides:"),
        "launch": t("belongs to the launch, not to the project:"),
        "inert": t("had no effect before either:"),
    }
    for kind, head in heads.items():
        entries = [one for one in left if one.kind == kind]
        if entries:
            console.talk()
            console.talk(head, style="bold")
        for one in entries:
            _show_one(one, decided)
    console.talk()


def show_code(file: str, lines: Mapping[str, int], *, written: bool) -> None:
    """On stderr: what of a script stands in task.py, or is to stand there, by its line in the script."""
    words = ", ".join(f"{name} ({file}:{line})" for name, line in lines.items())
    if words and written:
        console.talk(t("written to task.py: {pieces}; to check that they work, run trainwiz rehearse", pieces=words))
    elif words:
        console.talk(t("for task.py: {pieces}", pieces=words))
    else:
        console.talk(t("nothing from the script was written to task.py"))


def to_dict(carried: Mapping[str, Carried], left: Sequence[Left], decided: Decided) -> dict[str, Any]:
    """For `--json`: the plan, where its values come from, and what was left."""
    return {
        "plan": decided.plan.model_dump(mode="json"),
        "carried": {
            key: {"value": one.value, "file": one.place.file, "line": one.place.line, "path": one.path}
            for key, one in carried.items()
        },
        "left": [
            {
                "kind": one.kind,
                "path": one.path,
                "value": _value(one),
                "file": one.place.file,
                "line": one.place.line,
                "why": text(one.why),
                "key": one.key,
                "now": decided.plan.get(one.key) if one.key else None,
            }
            for one in left
        ],
    }


def _value(one: Left) -> str:
    """What the key had, without a secret: a report is passed on, and the value stands in the file."""
    name = one.path.rpartition(".")[2]
    return redaction.environment({name: one.value})[name]


def _show_one(one: Left, decided: Decided) -> None:
    stream = sys.stderr
    value = f": {_value(one)}" if one.value else ""
    at = console.styled(f"{one.place.file}:{one.place.line}", "dim", stream)
    console.talk(f"  {at} {one.path}{value}")
    words = text(one.why)
    if one.key:
        words = t("{why}; {key} is {value}", why=words, key=one.key, value=spelled(decided.plan.get(one.key)))
    for line in console.fitted(words, first="      ", rest="      ", stream=stream):
        console.talk(line)
