"""torch.nn.DataParallel beside what runs one process per GPU."""

from __future__ import annotations

import ast

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.engines import BY_HAND
from trainwiz.script.tree import dotted, written

_PARALLEL = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")


@rule("TW791", level=Level.WARNING, field="script")
def models_are_parallel_once(script: Script) -> Violations:
    """Do not wrap a model in DataParallel and in DistributedDataParallel.

    Without it: every rank copies its model to all GPUs in each forward pass, and scatters its batch over them: N ranks
    collide on N GPUs, which run out of memory.
    Why: DataParallel is for one process that owns all GPUs; under DDP, each process has one.
    Instead: remove DataParallel.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html (use DistributedDataParallel instead of DataParallel)
    """
    for wrap in script.called(*BY_HAND):
        given = wrap.argument("module", 0)
        scope = script.tree.scope(wrap.node)
        for call in script.called(*_PARALLEL) if given is not None else ():
            statement = script.tree.parent(call.node)
            named = (
                isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == dotted(given or call.node) != ""
            )
            # In transformers' scripts, n_gpu is 1 where there are several processes.
            counted = [g for g in script.tree.guards(call.node) if "device_count" not in written(g.test)]
            named = named and not (counted and set(script.tree.guards(wrap.node)).isdisjoint(counted))
            within = given is call.node
            here = script.tree.scope(call.node) is scope and not _is_apart(script, call.node, wrap.node)
            if within or (named and here and script.tree.is_before(call.node, wrap.node)):
                yield violation(
                    "each rank copies its model to all GPUs: it is wrapped in DataParallel before {wrapper}",
                    remedy("remove DataParallel"),
                    wrapper=dotted(wrap.node.func).rpartition(".")[2],
                    place=script.place(call.node),
                )


def _is_apart(script: Script, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes never both run: in two branches, or under a condition and under its opposite."""
    if script.tree.exclusive(one, other):
        return True
    pairs = [{_plain(g.test, g.positive) for g in script.tree.guards(node)} for node in (one, other)]
    return any((text, not positive) in pairs[1] for text, positive in pairs[0])


def _plain(test: ast.expr, positive: bool) -> tuple[str, bool]:
    """A condition without `not`, and whether it is true."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, positive = test.operand, not positive
    return written(test), positive
