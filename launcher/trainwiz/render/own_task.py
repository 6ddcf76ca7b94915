"""`task.py` of a project that was imported from a script: what could be taken out of it, and marks for the rest."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping

from trainwiz.fields import with_constant
from trainwiz.render.artifact import Artifact
from trainwiz.script.pieces import Counted, Piece, Pieces
from trainwiz.script.slices import DEVICE, OWN, Slice

_COUNTS: dict[Counted, str] = {
    "samples": "return samples",
    "labels": 'return int((batch["labels"] != -100).sum())',
    "next_labels": 'return int((batch["labels"][..., 1:] != -100).sum())',
}
_SHOWN_LINES = 12


def files(
    pieces: Pieces, example: str, templates: Mapping[str, str], *, script: str, name: str, lines: list[str]
) -> tuple[Artifact, ...]:
    """`task.py`, and `own.py` where it uses the script itself.

    `example` is the task.py that the plan generates, `script` the script's path from the project's folder, `name` its
    name for people, and `lines` its text.
    """
    text = templates["train_templates/imported/task.py"]
    shown = _Marks(name, lines)
    bodies = {
        "load_train_data": _returned(pieces.data, shown, "load_train_data"),
        "build_model": _returned(pieces.model, shown, "build_model"),
        "loss_sum": _loss(pieces, shown),
        "count": _COUNTS[pieces.counted],
    }
    if pieces.collate.gap or (pieces.collate.taken and pieces.collate.taken.expression):
        bodies["collator"] = _returned(pieces.collate, shown, "collator")
    for function, body in bodies.items():
        text = with_body(text, function, body)
    slices = [piece.taken for piece in pieces.all if piece.taken]
    taken = {line: None for one in slices for line in one.imports}
    if pieces.loss.taken and pieces.loss.taken.outer:
        text = _with_surroundings(text, pieces.loss.taken)
        taken |= {"import functools": None, "from types import SimpleNamespace": None}
    text = _with_imports(text, [line for line in taken if line not in text])
    found = [Artifact("task.py", text, generated=example)]
    if f"import {OWN}" in taken:
        own = with_constant(templates["train_templates/imported/own.py"], "SCRIPT", script)
        found.append(Artifact("own.py", own, generated=""))
    return tuple(found)


class _Marks:
    """What stands in place of a piece that could not be taken."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self._name, self._lines = name, lines

    def of(self, piece: Piece, function: str) -> str:
        assert piece.gap
        line, at = getattr(piece.node, "lineno", 0), getattr(piece.gap.node, "lineno", 0)
        where = f"{self._name}:{line}" if line else self._name
        why = f"{piece.gap.why}" + (f" (line {at})" if at else "")
        end = min(getattr(piece.node, "end_lineno", None) or line, line + _SHOWN_LINES - 1)
        source = textwrap.dedent("\n".join(self._lines[line - 1 : end])).splitlines() if line else []
        comments = [f"# TODO: {where}: {why}", *(f"#     {one}" for one in source)]
        return "\n".join([*comments, f"raise NotImplementedError({f'write {function} in task.py: see {where}'!r})"])


def _returned(piece: Piece, marks: _Marks, function: str) -> str:
    if piece.taken is None:
        return marks.of(piece, function)
    return "\n".join([*piece.taken.outer, *piece.taken.inner, f"return {piece.taken.expression}"])


def _loss(pieces: Pieces, marks: _Marks) -> str:
    taken = pieces.loss.taken
    if taken is None:
        return marks.of(pieces.loss, "loss_sum")
    outside = f"outside({DEVICE})" if taken.outer else ""
    text = "\n".join([*taken.inner, taken.expression])
    lines = [
        *(
            [f"{pieces.model_name} = model"]
            if pieces.model_name != "model" and pieces.model_name.isidentifier()
            else []
        ),
        *([f"{DEVICE} = next(model.parameters()).device"] if outside or re.search(rf"\b{DEVICE}\b", text) else []),
        f"{pieces.batch} = as_collated(batch)",
        *(f"{name} = {outside}.{name}" for name in taken.from_outside),
        *taken.inner,
        f"return ({taken.expression}).float() * {_COUNT}",
    ]
    return "\n".join([f'{_COUNT} = batch["n"]', *lines])


_COUNT = "n_of_the_mean"
"""A name that no script has."""


def _with_surroundings(text: str, taken: Slice) -> str:
    """With the function that makes once what the loss needs beside the model and the batch."""
    values = ", ".join(f"{name}={name}" for name in taken.from_outside)
    body = textwrap.indent("\n".join([*taken.outer, f"return SimpleNamespace({values})"]), "    ")
    function = (
        "@functools.cache\n"
        f"def outside({DEVICE}: torch.device) -> SimpleNamespace:\n"
        '    """Return what the loss uses beside model and batch; made once."""\n'
        f"{body}\n\n\n"
    )
    return text.replace("def loss_sum(", f"{function}def loss_sum(")


def with_body(text: str, name: str, body: str) -> str:
    """The text with another body in a function of the module, below its docstring."""
    function = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name)
    lines = text.splitlines()
    head = lines[: function.body[0].end_lineno]
    return "\n".join([*head, textwrap.indent(body, "    "), *lines[function.end_lineno or 0 :]]) + "\n"


def _with_imports(text: str, found: list[str]) -> str:
    """The text with more imports below its own, those of the script last."""
    if not found:
        return text
    last = max(n.end_lineno or 0 for n in ast.parse(text).body if isinstance(n, ast.Import | ast.ImportFrom))
    lines = text.splitlines()
    others = sorted(line for line in found if line != f"import {OWN}")
    own = ["", f"import {OWN}"] if len(others) < len(found) else []
    return "\n".join([*lines[:last], *others, *own, *lines[last:]]) + "\n"
