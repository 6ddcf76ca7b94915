"""A script's own model, data and loss: what becomes of each in a project."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.adoption.ledger import Kind, Left
from trainwiz.message import Message, say
from trainwiz.script import Script
from trainwiz.script.pieces import Piece, Pieces

_LONGEST = 60


def left(script: Script, pieces: Pieces, *, as_code: bool) -> tuple[Left, ...]:
    """What of the script's own code does not become part of the project, by line.

    `as_code` is whether the project's task.py takes it; otherwise the plan names another task, with its own code.
    """
    options = _options(script, pieces) if as_code else ()
    found = [*options, *_pieces(script, pieces, as_code=as_code), *_evaluations(script, pieces), *_rest(script, pieces)]
    return tuple(sorted(found, key=lambda one: one.place.line))


def _pieces(script: Script, pieces: Pieces, *, as_code: bool) -> Iterator[Left]:
    for piece in pieces.all:
        if as_code and piece.gap:
            why = say("{why}; task.py marks where to write it", why=_with_line(piece))
            yield _entry(script, "code", piece.name, piece.node, why)
        elif not as_code and not isinstance(piece.node, ast.Module):
            yield _entry(script, "lost", piece.name, piece.node, say("the plan's task has its own"))


def _with_line(piece: Piece) -> Message:
    assert piece.gap
    line = getattr(piece.gap.node, "lineno", None)
    if line is None or line == getattr(piece.node, "lineno", None):
        return piece.gap.why
    return say("line {line}: {why}", line=line, why=piece.gap.why)


def _options(script: Script, pieces: Pieces) -> Iterator[Left]:
    seen = set()
    for node in (node for piece in pieces.all if piece.taken for node in piece.taken.options):
        value = script.values.of(node)
        name = ast.unparse(node)
        if value and name not in seen:
            seen.add(name)
            why = say("the default {value} of {option} is used", value=repr(value.value), option=value.option)
            yield _entry(script, "code", "option", node, why)


def _evaluations(script: Script, pieces: Pieces) -> Iterator[Left]:
    why = say("the project does not evaluate; set data.eval and write load_eval_data and the metrics in task.py")
    for node in pieces.evaluation:
        yield _entry(script, "code", "evaluation", node, why)


def _rest(script: Script, pieces: Pieces) -> Iterator[Left]:
    for statement in pieces.rest:
        yield _entry(script, "lost", "loop", statement, say("the project's loop does not do this"))


def _entry(script: Script, kind: Kind, path: str, node: ast.AST, why: Message) -> Left:
    text = "" if isinstance(node, ast.Module) else " ".join(ast.unparse(node).split())
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return Left(kind=kind, path=path, value=shown, place=script.place(node), why=why)
