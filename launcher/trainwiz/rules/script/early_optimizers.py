"""Optimizers that are made before what replaces the parameters of their model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.names import parameters
from trainwiz.script.origins import argument
from trainwiz.script.tree import dotted, method, walk

_REPLACES = {
    "torch.distributed.fsdp.fully_shard": "fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP",
    "peft.get_peft_model": "get_peft_model",
    "Fabric.setup": "fabric.setup",
    "Fabric.setup_module": "fabric.setup",
}
_ADAPTS = r"(?i)(^|_)(to|add|inject|apply|insert|wrap|with|replace)_(\w+_)?lora(_|$)"
"""The project's own functions that put adapters into a model."""
_FABRIC_SHARDS = re.compile(r"FSDPStrategy|strategy=.fsdp")


@rule("TW737", level=Level.ERROR, field="script")
def optimizers_get_the_final_parameters(script: Script) -> Violations:
    """Create the optimizer after fully_shard, FSDP or get_peft_model.

    Without it: the optimizer updates parameters that the model no longer uses: the weights never change, and there is
    no error.
    Why: these functions replace the model's parameters, or add those that are to be trained.
    Instead: shard or adapt the model first, then create the optimizer from model.parameters().
    Source: https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html; seen with torch 2.13
    """
    for call, node, name in (*_replaced(script), *_adapted(script)):
        statement = script.tree.statement(node)
        if not name or not isinstance(statement, ast.Assign | ast.Expr):
            continue
        scope = script.tree.scope(node)
        made = [
            c
            for c in script.makers("Optimizer")
            if makes_optimizer(script, c, name) and script.tree.scope(c.node) is scope
        ] or list(_helpers(script, name, scope))
        groups = _early_groups(script, node, name)
        if groups is not None:
            yield violation(
                "the parameters are collected before {name}, which adds or replaces those that are to be trained",
                remedy("collect them after line {line}", line=script.place(node).line),
                name=_named(call),
                place=script.place(groups),
            )
            continue
        made = [c for c in made if not script.tree.exclusive(c.node, node)]
        before = [c for c in made if script.tree.is_before(c.node, node)]
        if before and len(before) == len(made):
            yield violation(
                "the optimizer is created before {name}, and keeps parameters that the model no longer uses",
                remedy("create the optimizer after line {line}", line=script.place(node).line),
                name=_named(call),
                place=script.place(before[0].node),
            )


def _named(call: Call) -> str:
    return _REPLACES.get(call.name) or dotted(call.node.func)


def _early_groups(script: Script, node: ast.Call, model: str) -> ast.expr | None:
    """What collects a model's parameters for an optimizer before they are replaced, and never after."""
    scope = script.tree.scope(node)
    named = [c for c in script.calls_like("(?i)adam|optim|sgd") if _is_named(script, c)]
    known = script.makers("Optimizer")
    for call in dict.fromkeys((*known, *named)):
        given = call.argument("params", 0)
        if script.tree.scope(call.node) is not scope or given is None or not isinstance(given, ast.Name):
            continue
        made = [a for a in script.names.assigned(given.id, given) if a.scope is scope]
        taken = [a for a in made if _collects(a.value, model)]
        early = bool(taken) and len(taken) == len(made) and all(script.tree.is_before(a.node, node) for a in taken)
        after = script.tree.is_before(node, call.node) or call not in known
        if early and after and not script.tree.exclusive(taken[0].node, node):
            return taken[0].value
    return None


def _is_named(script: Script, call: Call) -> bool:
    """Whether what a call makes is called an optimizer."""
    statement = script.tree.parent(call.node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return bool(targets) and all(script.engines.kind(target) == "Optimizer" for target in targets)


def _collects(value: ast.expr, model: str) -> bool:
    """Whether this is made of a model's parameters: by itself, or by a function that has them in its name."""
    for n in (one for one in walk(value) if isinstance(one, ast.Call)):
        if method(n) in ("parameters", "named_parameters") and _owner(n) == model:
            return True
        if "param" in dotted(n.func).rpartition(".")[2] and any(dotted(a) == model for a in n.args):
            return True
    return False


def _replaced(script: Script) -> Iterator[tuple[Call, ast.Call, str]]:
    """What replaces a model's parameters, where the script calls it or a function of its own for it, and the model."""
    for call in script.called(*_REPLACES):
        if call.name.startswith("Fabric") and (len(call.node.args) > 1 or not script.says(_FABRIC_SHARDS)):
            continue
        name = dotted(call.node.args[0]) if call.node.args else ""
        yield call, call.node, name
        function = script.tree.scope(call.node)
        for site in script.origins.sites(function) if name in parameters(function) else ():
            given, statement = argument(function, name, site), script.tree.statement(site)
            targets = [dotted(t) for t in statement.targets] if isinstance(statement, ast.Assign) else []
            if given is not None and dotted(given) in targets:
                yield call, site, dotted(given)


def _adapted(script: Script) -> Iterator[tuple[Call, ast.Call, str]]:
    """The same of the project's own functions that return the model with adapters in it."""
    for call in script.calls_like(_ADAPTS):
        statement = script.tree.parent(call.node)
        targets = [dotted(t) for t in statement.targets] if isinstance(statement, ast.Assign) else []
        name = dotted(call.node.args[0]) if call.node.args else ""
        if name and name in targets and script.origins.called(call.node) is not None:
            yield call, call.node, name


def _helpers(script: Script, model: str, scope: ast.AST) -> Iterator[Call]:
    """The calls of the project's own functions that make an optimizer for a model: `get_optimizer(model, args)`."""
    for call in script.calls_like("(?i)optim"):
        statement = script.tree.statement(call.node)
        named = isinstance(statement, ast.Assign) and all(
            script.engines.kind(t) == "Optimizer" for t in statement.targets
        )
        function = script.origins.called(call.node) if named and script.tree.scope(call.node) is scope else None
        if function is not None and any(dotted(value) == model for value in call.arguments):
            made = (c.node for c in script.makers("Optimizer"))
            if any(script.tree.scope(one) is function for one in made):
                yield call


def makes_optimizer(script: Script, call: Call, model: str) -> bool:
    if script.engines.kind(call.node) != "Optimizer" or not isinstance(script.tree.statement(call.node), ast.Assign):
        return False
    given = [n for value in call.node.args[:1] for n in script.names.feeding(value, call.node)]
    return any(
        isinstance(n, ast.Call) and method(n) in ("parameters", "named_parameters") and _owner(n) == model
        for n in given
    )


def _owner(call: ast.Call) -> str:
    return dotted(call.func).rpartition(".")[0]
