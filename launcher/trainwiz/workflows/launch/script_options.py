"""The arguments of a generated train.py, judged before any rank starts: there, they would be after torch's import."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from trainwiz import fields, files
from trainwiz.errors import UsageError
from trainwiz.message import say

_HELP = ("-h", "--help")


def refuse_unknown(arguments: Sequence[str], folder: Path) -> None:
    """Raise `UsageError` for an option that train.py is known not to have."""
    known = _known(folder) if arguments else None
    if known is None:
        return
    for word in arguments:
        name = word.partition("=")[0]
        if name.startswith("--") and name.removeprefix("--") not in known and name not in _HELP:
            near = difflib.get_close_matches(name.removeprefix("--"), sorted(known), n=1)
            raise UsageError(
                say("train.py has no option {name}", name=name),
                say("did you mean --{near}? To list the options, run: python train.py --help", near=near[0])
                if near
                else say("to list the options, run: python train.py --help"),
            )


def _known(folder: Path) -> frozenset[str] | None:
    """The options of the project's script; None where its text does not say them all."""
    try:
        loop, task = (files.read_text(folder / name) for name in ("train.py", "task.py"))
    except (OSError, ValueError):
        return None
    return fields.options(loop, task)
