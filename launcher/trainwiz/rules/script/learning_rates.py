"""Learning rates that follow the number of ranks."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.outline import Outline
from trainwiz.script.tree import constant, dotted, operates, walk

_RATE = re.compile(r"(^|_)(lr|learning_rate)(_|$)", re.IGNORECASE)
_RANKS = re.compile(r"world_size|(num|n)_?(gpus?|devices?|processes)$|device_count", re.IGNORECASE)


class _Scaled(NamedTuple):
    """A learning rate times the number of ranks."""

    rate: str
    """What is multiplied, as it is written."""
    node: ast.AST
    """The product, or the statement."""
    kept: str
    """The name that the product gets; empty: it is given to a call."""


@rule("TW788", level=Level.WARNING, field="script")
def rates_are_scaled_once(script: Script) -> Violations:
    """Scale the learning rate by the number of ranks only once.

    Without it: on 8 ranks, the learning rate is 64 times that of one rank, and the loss diverges.
    Why: the linear scaling rule multiplies by the number of ranks, because the real batch grows by it; a second place
    that does the same is easily missed.
    Instead: scale it in one place.
    Source: Goyal et al., Accurate, Large Minibatch SGD (https://arxiv.org/abs/1706.02677)
    """
    found = script.tree.each(_scaled) if script.engines.distributed else []
    for one in found:
        for other in found:
            again = other is not one and one.kept and other.rate == one.kept and not _is_same(one, other)
            if again and not script.tree.exclusive(one.node, other.node):
                yield violation(
                    "{rate} was already multiplied by the number of ranks on line {line}",
                    remedy("scale it once"),
                    rate=other.rate,
                    line=script.place(one.node).line,
                    place=script.place(other.node),
                )
                return


def _is_same(one: _Scaled, other: _Scaled) -> bool:
    """Whether one of the two is a part of the other."""
    return any(n is other.node for n in walk(one.node)) or any(n is one.node for n in walk(other.node))


def _scaled(outline: Outline) -> list[_Scaled]:
    """The learning rates of a module that are multiplied by a number of ranks."""
    if not any(map(_RATE.search, outline.mentions)):
        return []
    found = []
    for node in (n for n in outline.of(ast.BinOp) if isinstance(n.op, ast.Mult)):
        above = node.__dict__["_parent"]
        while isinstance(above, ast.BinOp):
            node, above = above, above.__dict__["_parent"]
        rate = _rate(node)
        if rate and _says_ranks(node):
            kept = dotted(above.targets[0]) if isinstance(above, ast.Assign) else ""
            found.append(_Scaled(rate, above if kept else node, kept))
    for node in outline.of(ast.AugAssign):
        scales = isinstance(node.op, ast.Mult) and _RATE.search(dotted(node.target).rpartition(".")[2])
        if scales and _says_ranks(node.value):
            found.append(_Scaled(dotted(node.target), node, dotted(node.target)))
    return list({id(one.node): one for one in found}.values())


def _rate(product: ast.AST) -> str:
    """The learning rate that is a factor of a product."""
    waiting, found = [product], ""
    while waiting:
        node = waiting.pop()
        if operates(node, ast.Mult):
            waiting += [node.left, node.right]  # type: ignore[attr-defined]
        elif operates(node, ast.Div):
            waiting.append(node.left)  # type: ignore[attr-defined]
        elif _RATE.search(dotted(node).rpartition(".")[2]):
            found = dotted(node)
    return found


def _says_ranks(value: ast.AST) -> bool:
    """Whether a number of ranks is a factor of a value, and does not divide it."""
    if isinstance(value, ast.BinOp):
        return _says_ranks(value.left) or (
            not isinstance(value.op, ast.Div | ast.FloorDiv) and _says_ranks(value.right)
        )
    name = dotted(value.func if isinstance(value, ast.Call) else value)
    return constant(value) is None and _RANKS.search(name.rpartition(".")[2]) is not None
