"""Averages of an evaluation of which some are collected from all ranks, and others are not."""

from __future__ import annotations

import ast
import re

from trainwiz.finding import Violations, remedy, violation
from trainwiz.script import Script
from trainwiz.script.tree import Function, dotted, walk, written

_COLLECTS = ("all_reduce", "reduce", "synchronize", "synchronize_between_processes", "reduce_across_processes", "sync")
_RANKS = re.compile(r"world_?size|num_?(gpus|processes|ranks|replicas)", re.IGNORECASE)
_SPEED = re.compile(r"time|speed|second|mem|data_", re.IGNORECASE)
"""In the names of what a rank may measure for itself."""


def one_left_out(script: Script) -> Violations:
    """Of what an evaluation averages, one that no rank collects, though it is used beside the others."""
    yield from _meter_left_out(script)
    yield from _tensor_left_out(script)


def _tensor_left_out(script: Script) -> Violations:
    """Of several averages that a function makes a tensor of in one way, one that is not added up over the ranks."""
    summed = [c for c in script.called("torch.distributed.all_reduce") if c.node.args and dotted(c.node.args[0])]
    for function in {script.tree.scope(c.node): None for c in summed}:
        here = [c.node for c in summed if script.tree.scope(c.node) is function]
        names = {dotted(call.args[0]) for call in here}
        made = {a.name: a for name in names for a in script.names.assigned(name, here[0]) if a.alone}
        shapes = {_shape(a.value) for a in made.values() if isinstance(a.value, ast.Call)}
        beside = [n for n in walk(function) if isinstance(n, ast.Assign) and _shape(n.value) in shapes]
        for one in beside:
            name = dotted(one.targets[0])
            given = [c for c in script.calls_given({name}) if script.tree.scope(c.node) is function]
            if not name or name in names or given or not _is_divided(script, function, name):
                continue
            yield violation(
                "{name} stays on this rank, unlike {others}: its score covers the share of this rank only",
                remedy("call dist.all_reduce({name}) before", name=name),
                name=name,
                others=", ".join(sorted(names)),
                place=script.place(one),
            )


def _shape(value: ast.AST) -> str:
    """How a tensor is made, whatever of: `torch.tensor(….val_loss, dtype=torch.float32).to(device)`."""
    call = value
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        call = call.func.value
    if not isinstance(call, ast.Call) or not call.args or dotted(call.func) not in ("torch.tensor", "torch.as_tensor"):
        return ""
    return written(value).replace(written(call.args[0]), "…")


def _is_divided(script: Script, function: ast.AST, name: str) -> bool:
    """Whether a function divides by the number of ranks what comes from a tensor."""
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    above = [a for n in uses for a in script.tree.inside(n) if isinstance(a, ast.BinOp) and isinstance(a.op, ast.Div)]
    return any(_RANKS.search(written(a.right)) for a in above)


def _meter_left_out(script: Script) -> Violations:
    """Of several meters of one kind, one that no rank collects, though its score is used beside those of the others."""
    for function in {script.tree.scope(c.node): None for c in script.methods(*_COLLECTS)}:
        if not isinstance(function, Function):
            continue
        kinds = _meters(script, function)
        calls = [c.node for c in script.methods(*_COLLECTS) if script.tree.scope(c.node) is function]
        collected = {dotted(c.func).rpartition(".")[0] for c in calls} & kinds.keys()
        left = [name for name in kinds if name not in collected and not _SPEED.search(name)]
        for name in left:
            beside = [one for one in collected if kinds[one] == kinds[name]]
            use = _use(script, function, name, calls) if beside else None
            if use is not None:
                yield violation(
                    "{name} stays on this rank, unlike {others}: its score covers the share of this rank only",
                    remedy("call its {method} as well", method=dotted(calls[0].func).rpartition(".")[2]),
                    name=name,
                    others=", ".join(sorted(beside)),
                    place=script.place(use),
                )


def _meters(script: Script, function: Function) -> dict[str, str]:
    """The names that a function gives to objects of the project's own classes, with their classes."""
    found = {}
    for kind in script.tree.of(ast.ClassDef):
        for call in script.calls_of(kind.name):
            for one in script.names.bound_to(call.node):
                if one.scope is function and one.alone:
                    found[one.name] = kind.name
    return found


def _use(script: Script, function: Function, name: str, calls: list[ast.Call]) -> ast.AST | None:
    """What computes or returns something from an attribute of a meter, after others were collected."""
    for node in script.tree.mentions(name):
        above = script.tree.parent(node)
        if script.tree.scope(node) is not function or not isinstance(above, ast.Attribute):
            continue
        called = isinstance(script.tree.parent(above), ast.Call) and script.tree.parent(above).func is above  # type: ignore[union-attr]
        statement = script.tree.statement(node)
        kept = isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return)
        if kept and not called and all(script.tree.is_before(c, node) for c in calls):
            return node
    return None
