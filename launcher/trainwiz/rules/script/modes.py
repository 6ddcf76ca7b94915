"""Training and evaluation mode: models that go on in the wrong one, and evaluations that keep gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.tree import Function, Loop, constant, dotted, leaves, walk, written

_EVALUATES = re.compile(r"eval|valid|test|infer", re.IGNORECASE)
"""In the names of functions that evaluate."""
_MODELS = ("", "Module", "DeepSpeedEngine")
"""Kinds of what has a mode; of most models, nothing is known."""
_DEEP = 2
"""Functions that call each other, down to the forward pass."""
_NO_GRADIENT = re.compile(r"no_grad|inference_mode|set_grad_enabled")


@rule("TW774", level=Level.WARNING, field="script")
def training_goes_on_in_training_mode(script: Script) -> Violations:
    """After an evaluation in the middle of an epoch, call model.train() again.

    Without it: from the first evaluation on, the rest of the epoch trains without dropout and with fixed batch
    statistics, and the loss looks better than it is.
    Why: eval() holds until train() is called; a train() at the start of the epoch comes too late for the batches that
    follow the evaluation.
    Instead: call model.train() after the evaluation, or before each batch.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (train, eval)
    """
    if not script.training.backwards:
        return
    trains = _switches(script, "train")
    for call in _switches(script, "eval") if trains or script.engines.prepares_any else ():
        names = script.origins.aliases(_owner(call))
        again = [t for t in trains if names & script.origins.aliases(_owner(t))]
        known = again or _learns(script, names)
        around = script.origins.loops(call.node) if known else []
        loop = _shared(script, around)
        if loop is None or any(loop in script.origins.loops(t.node) for t in again) or _leaves(script, call, loop):
            continue
        yield violation(
            "{name} stays in evaluation mode for the rest of the loop: train() is only called outside of it",
            remedy("call {name}.train() after the evaluation", name=dotted(_owner(call))),
            name=dotted(_owner(call)),
            place=script.place(call.node),
        )
        return


@rule("TW775", level=Level.HINT, field="script")
def evaluation_is_in_evaluation_mode(script: Script) -> Violations:
    """Call model.eval() before an evaluation.

    Without it: dropout is active and batch norm uses, and changes, the statistics of the evaluation's batches: the
    score is worse than the model, and the evaluation changes the model.
    Why: a model is in training mode until eval() is called; no_grad only turns off gradients.
    Instead: call model.eval() before the evaluation, and model.train() after it.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (train, eval)
    """
    if not script.training.backwards:
        return
    trains = _switches(script, "train")
    known = frozenset().union(*(script.origins.aliases(_owner(t)) for t in trains))
    switched = _switches(script, "eval") if known else []
    for call in _without_gradient(script) if known else ():
        names = script.origins.aliases(call.func)
        scope = script.tree.scope(call)
        evaluates = isinstance(scope, Function) and _EVALUATES.search(scope.name)
        around = {scope, *(script.tree.scope(site) for site in script.origins.sites(scope))}
        near = (
            e
            for e in switched
            if script.tree.scope(e.node) in around or script.origins.sites(script.tree.scope(e.node))
        )
        tested = any(names & script.origins.aliases(_owner(e)) for e in near)
        if evaluates and names & known and not tested and script.tree.loops(call):
            yield violation(
                "{name} is evaluated in training mode: eval() is never called on it",
                remedy("call {name}.eval() before the evaluation", name=dotted(call.func)),
                name=dotted(call.func),
                place=script.place(call),
            )
            return


@rule("TW776", level=Level.HINT, field="script")
def evaluation_keeps_no_gradients(script: Script) -> Violations:
    """Evaluate under torch.no_grad() or inference_mode().

    Without it: each forward pass keeps all activations for a backward pass that never comes: an evaluation needs
    several times the memory, and metrics that are added up keep the graph of every batch.
    Why: eval() changes layers, not gradients.
    Instead: put the loop under `with torch.no_grad():`, or decorate the function.
    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html (locally disabling gradient computation)
    """
    for scope, begin, names in _evaluations(script) if script.training.backwards else ():
        inside = begin if begin is not scope else scope.body[0]  # type: ignore[attr-defined]
        if _is_off(script, inside, 3):
            continue
        for loop in (n for n in walk(scope) if isinstance(n, ast.For) and script.tree.is_before(begin, n)):
            near = script.tree.loops(loop)[:1] == script.tree.loops(begin)[:1] or begin is scope
            learns = loop in script.training.turns or script.training.within(loop)
            found = _forward(script, loop, names, _DEEP) if near and not learns else None
            if found is not None:
                yield violation(
                    "this evaluation computes gradients that nobody uses",
                    remedy("put it under: with torch.no_grad()"),
                    place=script.place(found),
                )
                return


def _evaluations(script: Script) -> Iterator[tuple[ast.AST, ast.AST, frozenset[str]]]:
    """The functions and modules that evaluate, from where in them, and the names of the model."""
    for call in _switches(script, "eval"):
        yield script.tree.scope(call.node), call.node, script.origins.aliases(_owner(call))
    for function in script.tree.functions:
        if _EVALUATES.search(function.name) and function in script.live:
            names = (n.id for n in walk(function) if isinstance(n, ast.Name) and script.engines.is_prepared(n))
            yield function, function, frozenset(names)


def _switches(script: Script, name: str) -> list[Call]:
    """The calls that put a model into a mode: not a Trainer's train(), nor pandas' eval."""
    found = []
    for call in script.methods(name):
        owner = _owner(call)
        said = len(call.node.args) <= (name == "train") and not call.node.keywords
        off = name == "train" and bool(call.node.args) and constant(call.node.args[0]) is False
        plain = (
            dotted(owner)
            and dotted(owner) not in ("self", "super", "trainer")
            and script.engines.kind(owner) in _MODELS
        )
        if said and not off and plain and isinstance(script.tree.parent(call.node), ast.Expr):
            found.append(call)
    return found


def _learns(script: Script, names: frozenset[str]) -> bool:
    """Whether a prepared model of one of these names computes what a backward pass goes back from."""
    fed = (
        n for b in script.training.distinct for loss in script.training.losses(b) for n in script.names.feeding(loss)
    )
    calls = (n for n in fed if isinstance(n, ast.Call) and dotted(n.func) in names)
    return any(script.engines.is_prepared(n.func) and not script.tree.without_gradient(n) for n in calls)


def _owner(call: Call) -> ast.expr:
    assert isinstance(call.node.func, ast.Attribute)
    return call.node.func.value


def _shared(script: Script, around: list[Loop]) -> Loop | None:
    """The innermost loop of the training that an evaluation is in as well."""
    for backward in script.training.distinct:
        found = next((loop for loop in script.origins.loops(backward.call) if loop in around), None)
        if found is not None:
            return found
    return None


def _leaves(script: Script, call: Call, loop: Loop) -> bool:
    """Whether the loop ends after the evaluation, or the evaluation comes before all training of its turn."""
    ways = [call.node, *script.origins.sites(script.tree.scope(call.node))]
    for node in (n for n in ways if loop in script.tree.loops(n)):
        for above in (node, *script.tree.inside(node)):
            parent = script.tree.parent(above)
            block = next((b for b in (getattr(parent, "body", None), getattr(parent, "orelse", None)) if b), None)
            if isinstance(parent, ast.If) and isinstance(block, list) and above in block and leaves(block):
                return True
    return False


def _without_gradient(script: Script) -> Iterator[ast.Call]:
    """The calls under no_grad, in order."""
    for block in script.tree.of(ast.With):
        if any(_NO_GRADIENT.search(written(item.context_expr)) for item in block.items):
            yield from (n for s in block.body for n in walk(s) if isinstance(n, ast.Call) and dotted(n.func))
    for function in script.tree.functions:
        if any(_NO_GRADIENT.search(written(d)) for d in function.decorator_list):
            yield from (n for n in walk(function) if isinstance(n, ast.Call) and dotted(n.func))


def _is_off(script: Script, node: ast.AST, depth: int) -> bool:
    """Whether gradients are off around a node, or around all calls of its function, or by set_grad_enabled."""
    scope = script.tree.scope(node)
    switched = script.calls_of("set_grad_enabled")
    if script.tree.without_gradient(node) or any(script.tree.scope(c.node) is scope for c in switched):
        return True
    marks = getattr(scope, "decorator_list", ())
    if any(_NO_GRADIENT.search(written(mark)) for mark in marks):
        return True
    return depth > 0 and any(_is_off(script, site, depth - 1) for site in script.origins.sites(scope))


def _forward(script: Script, node: ast.AST, names: frozenset[str], depth: int) -> ast.Call | None:
    """The first call below a node by which a model runs with gradients, itself or by the project's functions."""
    for call in (n for n in walk(node) if isinstance(n, ast.Call)):
        if script.tree.without_gradient(call) or not dotted(call.func):
            continue
        if script.origins.aliases(call.func) & names:
            return call
        function = script.origins.called(call) if depth else None
        if function is None or any(_NO_GRADIENT.search(written(d)) for d in function.decorator_list):
            continue
        if _forward(script, function, names, depth - 1) is not None:
            return call
    return None
