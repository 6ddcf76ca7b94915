"""Updates: whether gradients are cleared, the scaler adapts, and the engine itself makes the step."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from trainwiz.finding import Level, Violations, edited, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.edits import after
from trainwiz.script.idioms import without_deepspeed
from trainwiz.script.training import Backward, remainder
from trainwiz.script.tree import Guard, Loop, constant, dotted, method, walk, written

_PRECISION = re.compile(r"\b\w*(?:amp|fp16|bf16|half|precision|scaler|autocast)\w*\b", re.I)
"""In the words of a condition that chooses a precision."""
_STEPPED = ("Tensor", "GradScaler", "Accelerator", "Fabric", "Booster")
"""Whose backward pass changes no weights by itself."""

_ACCUMULATION = re.compile(r"accum|(^|[._(])gas\b|micro", re.IGNORECASE)
_ASIDE = re.compile(r"save|checkpoint|restore|resume|^eval|valid|^test", re.IGNORECASE)
"""In the names of functions that clear gradients for a purpose of their own."""
_RECENT_DEEPSPEED = re.compile(r"torch_autocast")
"""A key of its configuration that only versions read which take loss.backward() for their own."""


@rule("TW715", level=Level.ERROR, field="script")
def gradients_are_cleared(script: Script) -> Violations:
    """Call zero_grad once per update.

    Without it: each update uses the sum of all gradients since the start; the steps grow, and the loss diverges.
    Why: backward adds to .grad, and only zero_grad clears it. DeepSpeed's engine.step clears it by itself.
    Instead: call optimizer.zero_grad() after each optimizer.step().
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html; seen with torch 2.13
    """
    updates = [*script.training.steps, *(b.call for b in script.training.backwards if b.by == "NativeScaler")]
    engines = {b.by for b in script.training.backwards}
    if not updates or "DeepSpeedEngine" in engines:
        return
    if script.clears_gradients:
        yield from _cleared_once(script)
        yield from _one_left_out(script)
        return
    learning = {loop for b in script.training.backwards for loop in script.origins.loops(b.call)}
    for step in updates:
        if not learning.isdisjoint(script.origins.loops(step)) and not _is_made_anew(script, step):
            yield violation(
                "zero_grad is never called: the gradients of all updates add up",
                edited(
                    remedy("call optimizer.zero_grad() after the step"),
                    after(script, step, f"{_object(step)}.zero_grad()") if step in script.training.steps else (),
                ),
                place=script.place(step),
            )
            return


@rule("TW769", level=Level.WARNING, field="script")
def optimizers_step(script: Script) -> Violations:
    """Call optimizer.step() after the backward pass.

    Without it: the weights never change, and there is no error: the loss stays where it began.
    Why: backward only computes gradients; the optimizer changes the weights in step().
    Instead: call optimizer.step() once per update, then optimizer.zero_grad().
    Source: https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    """
    passes = [b for b in script.training.backwards if b.by in _STEPPED and script.origins.loops(b.call)]
    if script.engines.deepspeed:  # where accelerator.backward steps DeepSpeed's engine, too
        passes = [b for b in passes if b.by != "Accelerator"]
    # The program's own passes need steps of their own, whatever the trainers of its library do.
    own = [b for b in passes if script.part(b.call) is script.parts[-1]] if script.is_program else []
    passes = own or passes
    loops = {loop for b in passes for loop in script.origins.loops(b.call)}
    steps = [c for c in script.calls_of("step") if _may_step(script, c) and c.node in script.live]
    around = [script.origins.loops(c.node) for c in steps]
    if not passes or any(not found or not loops.isdisjoint(found) for found in around):
        yield from _without_step(script, passes)
        return
    learning = {script.tree.scope(b.call) for b in passes}
    cleared = [c.node.func.value for c in script.methods("zero_grad") if isinstance(c.node.func, ast.Attribute)]
    known = [o for o in cleared if script.tree.scope(o) in learning and script.engines.kind(o) == "Optimizer"]
    known += [c.node.func for c in script.makers("Optimizer") if script.tree.scope(c.node) in learning]
    if known and not any("optim" in c.last.lower() or "update" in c.last.lower() for c in _given(script, known)):
        yield violation(
            "{name}.step() is never called: the weights never change",
            remedy("call optimizer.step() after the backward pass"),
            name=dotted(known[0]),
            place=script.place(passes[0].call),
        )


def _without_step(script: Script, passes: Sequence[Backward]) -> Violations:
    """A backward pass in one precision's branch, where only the branches of others have a step."""
    for one in passes:
        steps = [s for s in script.training.steps if script.tree.scope(s) is script.tree.scope(one.call)]
        near = [s for s in steps if set(script.tree.loops(s)) & set(script.tree.loops(one.call))]
        if not near or len(near) != len(script.training.steps):
            continue
        chosen = [g for g in script.tree.guards(one.call) if _PRECISION.search(written(g.test))]
        if chosen and all(script.tree.exclusive(one.call, s) for s in near):
            yield violation(
                "no optimizer steps after this backward pass: its branch has none",
                remedy("call optimizer.step() after the backward pass"),
                place=script.place(one.call),
            )
            return


@rule("TW716", level=Level.ERROR, field="script")
def scalers_are_updated(script: Script) -> Violations:
    """Call scaler.update() after scaler.step(optimizer).

    Without it: the second step stops with `step() has already been called since the last update().`
    Why: update() begins a new iteration; it also lowers the loss scale after an overflow.
    Instead: call scaler.step(optimizer), then scaler.update().
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html; seen with torch 2.13
    """
    steps = [c for c in script.called("GradScaler.step") if c.node.args]
    updated = [(script.tree.scope(c.node), _owner(c)) for c in script.called("GradScaler.update")]
    here = [c for c in steps if any(script.tree.scope(c.node) is scope for scope, _ in updated)]
    if updated:  # of several scalers of one function, each has its own
        left = [c for c in here if (script.tree.scope(c.node), _owner(c)) not in updated and len(here) > len(updated)]
        steps = [*left, *(c for c in here if _is_in_other_branch(script, c))]
    for call in steps[:1]:
        yield violation(
            "{name}.update() is never called: the second step fails",
            edited(
                remedy("call {name}.update() after the step", name=_owner(call)),
                after(script, call.node, f"{_owner(call)}.update()"),
            ),
            name=_owner(call),
            place=script.place(call.node),
        )


def _is_in_other_branch(script: Script, step: Call) -> bool:
    """Whether the scaler of a step is updated in its function, but never on the step's own way through it."""
    scope = script.tree.scope(step.node)
    updates = [c.node for c in script.called("GradScaler.update") if script.tree.scope(c.node) is scope]
    return bool(updates) and all(script.tree.exclusive(step.node, update) for update in updates)


@rule("TW771", level=Level.ERROR, field="script")
def scaled_gradients_step_through_the_scaler(script: Script) -> Violations:
    """With a GradScaler, call scaler.step(optimizer), never the optimizer's own step.

    Without it: the update uses gradients that are still multiplied by the loss scale (65536 at first), or the infinite
    ones of an overflow, after which all weights are NaN.
    Why: scaler.step divides the gradients by the loss scale, and skips the update after an overflow.
    Instead: call scaler.step(optimizer), then scaler.update(), and not optimizer.step().
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html (typical mixed precision training)
    """
    by_scaler = [step for step in script.training.steps if step.args]
    for step in script.training.steps:
        if step.args or script.engines.kind(step.func.value) != "Optimizer":  # type: ignore[attr-defined]
            continue
        near = [b for b in script.training.backwards if _is_near(script, b, step)]
        reaching = [b for b in near if not script.tree.exclusive(b.call, step) and not _contradicts(script, b, step)]
        scaled = [b for b in reaching if b.by == "GradScaler"]
        if not scaled or len(scaled) < len(reaching) or any(script.tree.exclusive(s, step) for s in by_scaler):
            continue
        if _asks_precision(script, step, scaled[0]):
            continue
        yield violation(
            "{call} bypasses the scaler: the gradients are those of the scaled loss",
            remedy("call {scaler}.step({name}) instead", scaler=_scaler(scaled[0]), name=_object(step)),
            call=written(step),
            place=script.place(step),
        )


@rule("TW717", level=Level.WARNING, field="script")
def deepspeeds_engine_steps(script: Script) -> Violations:
    """Under DeepSpeed, call engine.step() after every engine.backward().

    Without it: optimizer.step() skips what the engine does at an update: clipping, the scheduler, the loss scale and
    the count of micro-batches; under a condition, the engine counts fewer micro-batches than it saw. With
    loss.backward(), gradients are not averaged before DeepSpeed 0.18.3; DeepSpeed 0.19 refuses it under ZeRO 0 and in
    fp16.
    Why: the engine itself counts micro-batches up to gradient_accumulation_steps, and updates after the last one.
    Instead: call engine.backward(loss) and engine.step() for each micro-batch, and neither step nor zero_grad of the
    optimizer.
    Source: https://deepspeed.readthedocs.io/en/latest/training.html; deepspeedai/DeepSpeed pull request 7665
    """
    passes = [b for b in script.training.backwards if b.by == "DeepSpeedEngine"]
    counted_by_engine = bool(passes)
    passes = passes or [b for b in script.training.backwards if _is_from_engine(script, b)]
    if not passes or not script.called("deepspeed.initialize"):
        return
    yield from _past_the_engine(script)
    for step in script.training.steps:
        loops = script.origins.loops(step)
        before = [b for b in passes if loops and script.origins.loops(b.call)[:1] == loops[:1]]
        before = [b for b in before if not script.tree.exclusive(b.call, step)]
        if before and _is_of_engine(script, step) and not without_deepspeed(script, step):
            yield violation(
                "{call}: this bypasses the engine's own step",
                remedy("call engine.step() instead"),
                call=written(step),
                place=script.place(step),
            )
            return
    if not counted_by_engine:
        return
    steps = [c for c in script.methods("step") if _is_engine(c, passes)]
    if not steps and not script.training.steps:
        yield violation(
            "engine.step() is never called: the weights never change",
            remedy("call engine.step() after engine.backward(loss)"),
            place=script.place(passes[0].call),
        )
    for call in steps:
        loops = script.tree.loops(call.node)
        around = script.origins.loops(call.node)[:1]
        guards = script.tree.guards(call.node, within=loops[0]) if loops else script.tree.guards(call.node)
        counted = [g for g in guards if _counts(script, g, next(iter(around), None))]
        inner = _inner_window(script, call.node, passes)
        if inner is not None:
            yield violation(
                "the engine counts micro-batches itself, but this step waits for the end of {loop}",
                remedy("call engine.step() after every engine.backward(loss)"),
                loop=written(inner.iter),
                place=script.place(call.node),
            )
            return
        each = [b for b in passes if around and script.origins.loops(b.call)[:1] == around]
        tests = {id(g.test) for g in script.tree.guards(each[0].call)} if each else set()
        if each and counted and not any(id(g.test) in tests for g in counted):
            yield violation(
                "the engine counts micro-batches itself, but this step is under a condition",
                remedy("call engine.step() after every engine.backward(loss)"),
                place=script.place(call.node),
            )


def _counts(script: Script, guard: Guard, loop: Loop | None) -> bool:
    """Whether a condition waits for the last micro-batch of a window: `(i + 1) % n == 0`, or `i == n - 1`."""
    test = script.training.expanded(guard.test)
    if remainder(test, guard.positive):
        return True
    last = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.GtE)
    if not last or not guard.positive or not isinstance(loop, ast.For):
        return False
    assert isinstance(test, ast.Compare)
    turns = {dotted(n) for n in walk(loop.target)} - {""}
    return dotted(test.left) in turns and _ACCUMULATION.search(written(test.comparators[0])) is not None


def _inner_window(script: Script, step: ast.Call, passes: Sequence[Backward]) -> ast.For | None:
    """The loop over the micro-batches of an update that a step comes after: `for _ in range(accumulation): …`."""
    if script.has_attribute("set_gradient_accumulation_boundary"):
        return None
    for loop in (b.loop for b in passes if isinstance(b.loop, ast.For)):
        counted = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range"
        beside = script.tree.loops(loop)[:1] == script.tree.loops(step)[:1] != []
        after = script.tree.scope(loop) is script.tree.scope(step) and script.tree.is_before(loop, step)
        if counted and beside and after and _ACCUMULATION.search(written(loop.iter)):
            return loop
    return None


@rule("TW725", level=Level.ERROR, field="script")
def accumulation_is_used(script: Script) -> Violations:
    """An Accelerator with gradient_accumulation_steps needs `with accelerator.accumulate(model):` around each batch.

    Without it: the optimizer steps after every micro-batch, with a loss that is divided by the accumulation: the real
    batch is n times smaller than planned, and so is each gradient.
    Why: accelerator.backward divides by gradient_accumulation_steps; only accumulate() delays the step.
    Instead: write `with accelerator.accumulate(model):` around forward pass, backward pass, step and zero_grad.
    Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation; seen with accelerate 1.15
    """
    told = script.accumulation
    value = script.values.of(told) if told is not None else None
    if told is None or (value and value.value in (1, None) and not value.option):
        return
    # DeepSpeed's engine counts micro-batches itself, and a modulo by the accumulation is a window by hand.
    own = script.called("accelerate.DeepSpeedPlugin", "accelerate.utils.DeepSpeedPlugin")
    counts = script.training.windows or any(_by_accumulation(script, node, told) for node in script.tree.of(ast.BinOp))
    by_hand = script.has_attribute("accumulate", "no_sync", "_set_sync_gradients")
    if own or counts or by_hand:
        return
    for backward in script.training.backwards:
        if backward.by == "Accelerator":
            yield violation(
                "gradient_accumulation_steps is given, but accumulate() is never used: every micro-batch is an update",
                remedy("put the batch under: with accelerator.accumulate(model)"),
                place=script.place(told),
            )
            return


def _cleared_once(script: Script) -> Violations:
    """Updates in a loop before which the gradients are cleared, but not in it."""
    clears = script.calls_like("zero_grad")
    if script.says(_CLEARED):
        return  # without a call
    aside = bool(clears) and all(_ASIDE.search(getattr(script.tree.scope(c.node), "name", "")) for c in clears)
    for step in script.training.steps:
        loops, function = script.tree.loops(step), script.tree.scope(step)
        if aside and script.origins.loops(step) and not _ASIDE.search(getattr(function, "name", "")):
            yield violation(
                "zero_grad is called only in {name}: the gradients of all updates between add up",
                remedy("call optimizer.zero_grad() after the step"),
                name=getattr(script.tree.scope(clears[0].node), "name", ""),
                place=script.place(step),
            )
            return
        near = [c for c in clears if script.tree.scope(c.node) is function]
        within = [c for c in clears if loops and loops[0] in script.origins.loops(c.node)]
        learns = any(loops and b.loop is loops[0] for b in script.training.backwards)
        alone = not near and bool(clears) and not within and all(_has_own_step(script, c.node) for c in clears)
        if learns and not step.args and alone and not _is_given(_stepping(step), loops[0]):
            yield violation(
                "zero_grad is never called in this loop: the gradients of all its updates add up",
                remedy("call optimizer.zero_grad() after the step"),
                place=script.place(step),
            )
            return
        if learns and not step.args and near and not within and len(near) == len(clears):
            yield violation(
                "zero_grad is called only before the loop: the gradients of all its updates add up",
                remedy("call optimizer.zero_grad() after the step"),
                place=script.place(step),
            )
            return


_CLEARED = re.compile(r"\.grad\s*=(?!=)|\.grad(?:\.data)?\.(?:zero|detach|fill|mul)_|_foreach_zero_")
"""Gradients that are cleared by hand."""


def _has_own_step(script: Script, clear: ast.AST) -> bool:
    """Whether gradients are cleared for the updates of the same function."""
    return any(script.tree.scope(step) is script.tree.scope(clear) for step in script.training.steps)


def _is_given(optimizer: ast.expr, loop: ast.AST) -> bool:
    """Whether something in a loop gets the optimizer, and may clear its gradients."""
    calls = (n for n in walk(loop) if isinstance(n, ast.Call))
    return any(dotted(value) == dotted(optimizer) for n in calls for value in [*n.args, *(k.value for k in n.keywords)])


def _one_left_out(script: Script) -> Violations:
    """Of several optimizers that step, one whose gradients are never cleared, while those of the others are."""
    yield from _model_left_out(script)
    clears = [c.node.func.value for c in script.calls_like("zero_grad") if isinstance(c.node.func, ast.Attribute)]
    stepped = {_last(_stepping(step)): step for step in script.training.steps if dotted(_stepping(step))}
    cleared = {_last(owner) for owner in clears}
    if len(stepped) < 2 or not cleared or not cleared <= stepped.keys():
        return
    if script.says(_CLEARED):
        return  # without a call
    for name, step in stepped.items():
        loops = script.origins.loops(step)
        learns = any(
            b.by in _STEPPED and set(loops) & set(script.origins.loops(b.call)) for b in script.training.backwards
        )
        made = any(name in _assigned(script, c) for c in script.makers("Optimizer")) or any(
            _makes_one(a.value) for a in script.names.assigned(dotted(_stepping(step)), step)
        )
        if name not in cleared and learns and made and not _is_made_anew(script, step):
            yield violation(
                "{name}.zero_grad() is never called, though other optimizers are cleared: its gradients add up",
                edited(
                    remedy("call {name}.zero_grad() after its step", name=dotted(_stepping(step))),
                    after(script, step, f"{dotted(_stepping(step))}.zero_grad()"),
                ),
                name=dotted(_stepping(step)),
                place=script.place(step),
            )


def _model_left_out(script: Script) -> Violations:
    """Of several models whose gradients are cleared by their own zero_grad, one that learns, but is never cleared."""
    clears = [c.node.func.value for c in script.calls_like("zero_grad") if isinstance(c.node.func, ast.Attribute)]
    cleared = {_last(owner) for owner in clears}
    if not clears or any(script.engines.kind(owner) == "Optimizer" for owner in clears):
        return
    if any(_CLEARED.search(part.text) for part in script.parts):
        return
    models = {name: _last_of_models(script, name) for name in _optimizers(script)}
    known = {one for names in models.values() for one in names}
    for step in script.training.steps if cleared <= known else ():
        names = models.get(_last(_stepping(step)), set())
        learns = any(b.loop is not None and b.loop in script.tree.loops(step) for b in script.training.backwards)
        if names and learns and names.isdisjoint(cleared):
            yield violation(
                "{name}.zero_grad() is never called, though other optimizers are cleared: its gradients add up",
                remedy("call {name}.zero_grad() after its step", name=dotted(_stepping(step))),
                name=dotted(_stepping(step)),
                place=script.place(step),
            )
            return


def _optimizers(script: Script) -> list[str]:
    return [name for c in script.makers("Optimizer") for name in _assigned(script, c)]


def _last_of_models(script: Script, optimizer: str) -> set[str]:
    """The last names of the models whose parameters an optimizer of this name gets."""
    made = [c for c in script.makers("Optimizer") if optimizer in _assigned(script, c)]
    nodes = [n for c in made for value in c.node.args[:1] for n in script.names.feeding(value, c.node)]
    calls = [n for n in nodes if isinstance(n, ast.Call) and method(n) in ("parameters", "named_parameters")]
    return {dotted(n.func).rpartition(".")[0].rpartition(".")[2] for n in calls}


def _makes_one(value: ast.expr) -> bool:
    """Whether a function makes an optimizer from parameters: `get_optimizer(model.parameters())`."""
    return isinstance(value, ast.Call) and "parameters()" in written(value)


def _stepping(step: ast.Call) -> ast.expr:
    """The optimizer of `optimizer.step()` and of `scaler.step(optimizer)`."""
    return step.args[0] if step.args and dotted(step.args[0]) else step.func.value  # type: ignore[attr-defined]


def _last(owner: ast.expr) -> str:
    return dotted(owner).rpartition(".")[2]


def _assigned(script: Script, call: Call) -> set[str]:
    """The last names of what an optimizer is assigned to."""
    statement = script.tree.statement(call.node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {_last(target) for target in targets}


def _may_step(script: Script, call: Call) -> bool:
    """Whether a step may be that of an optimizer: not a scheduler's or a profiler's."""
    if not isinstance(call.node.func, ast.Attribute) or script.engines.kind(call.node.func.value) == "Scheduler":
        return False
    return (
        re.search(r"prof|sched|check|ckpt|timer|logger|writer|progress|bar$", dotted(call.node.func.value), re.I)
        is None
    )


def _given(script: Script, optimizers: Sequence[ast.expr]) -> list[Call]:
    """The calls in the loops of the training that are given one of these optimizers: they may make the update."""
    names = {dotted(one) for one in optimizers}
    loops = set(script.training.turns)
    inside = [c for c in script.calls if loops.intersection(script.tree.loops(c.node))]
    return [c for c in inside if any(dotted(value) in names for value in c.arguments)]


def _by_accumulation(script: Script, node: ast.BinOp, told: ast.expr) -> bool:
    """Whether it is a remainder by what the Accelerator is told, or by what is called an accumulation."""
    if not isinstance(node.op, ast.Mod):
        return False
    by = written(node.right)
    if any("resume" in written(guard.test) for guard in script.tree.guards(node)):
        return False  # which only counts how far a bar is
    return by == written(told) or (isinstance(node.right, ast.Name | ast.Attribute) and "accum" in by.lower())


def _is_made_anew(script: Script, step: ast.Call) -> bool:
    """Whether the optimizer is made in the very loop of its step, for something that has no gradient yet."""
    made = script.names.assigned(_object(step), step)
    loops = script.tree.loops(step)
    return bool(made and loops) and all(loops[0] in script.tree.loops(one.node) for one in made)


def _is_near(script: Script, backward: Backward, step: ast.Call) -> bool:
    """Whether a backward pass is made in the function of a step, itself or by a function that this calls."""
    function = script.tree.scope(backward.call)
    around = [function, *(script.tree.scope(site) for site in script.origins.sites(function))]
    stepping = script.tree.scope(step)
    return stepping in around or any(script.tree.scope(site) is function for site in script.origins.sites(stepping))


def _contradicts(script: Script, backward: Backward, step: ast.Call) -> bool:
    """Whether a condition of the backward pass is the opposite of one of the step, by its words."""
    tests = {(written(guard.test), guard.positive) for guard in script.tree.guards(step)}
    return any((written(guard.test), not guard.positive) in tests for guard in script.tree.guards(backward.call))


def _asks_precision(script: Script, step: ast.Call, scaled: Backward) -> bool:
    """Whether a condition on the precision, which the backward pass is not under, lets an optimizer step itself."""
    known = {written(guard.test) for guard in script.tree.guards(scaled.call)}
    asked = (written(guard.test) for guard in script.tree.guards(step))
    tests = " ".join(test for test in asked if test not in known)
    return re.search(r"scaler|amp|fp16|half|mixed|precision|float16", tests, re.IGNORECASE) is not None


def _scaler(backward: Backward) -> str:
    owner = backward.call.func.value  # type: ignore[attr-defined]
    return written(owner.func.value) if method(owner) == "scale" else "scaler"


def _object(call: ast.Call) -> str:
    return written(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _owner(call: Call) -> str:
    return dotted(call.node.func).rpartition(".")[0]


def _is_of_engine(script: Script, step: ast.Call) -> bool:
    """Whether an optimizer is what `deepspeed.initialize` returned, or was given."""
    owner = step.func.value if isinstance(step.func, ast.Attribute) else step
    if isinstance(owner, ast.Attribute) and script.engines.kind(owner.value) == "DeepSpeedEngine":
        return True
    made = script.origins.makers(owner)
    if any(isinstance(m, ast.Call) and script.names.resolved(m.func) == "deepspeed.initialize" for m in made):
        return True
    given = [v for c in script.called("deepspeed.initialize") for v in (c.keyword("optimizer"),) if v is not None]
    return any(dotted(value) == dotted(owner) for value in given if constant(value) is None)


def _past_the_engine(script: Script) -> Violations:
    """A tensor's own backward pass, where the engine's belongs."""
    own = [b.call for b in script.training.backwards if b.by == "DeepSpeedEngine"]
    if script.engines.accelerate or script.says(_RECENT_DEEPSPEED):
        return
    for backward in script.training.distinct:
        guards = script.tree.guards(backward.call)
        told = any(g.positive and "deepspeed" in written(g.test).lower() for g in guards)
        scaled = any(method(n) == "scale" for n in script.names.feeding(backward.loss) if isinstance(n, ast.Call))
        others = any(script.tree.exclusive(backward.call, one) for one in own)
        if _is_from_engine(script, backward) and not scaled and not others and (told or not script.wrappers):
            yield violation(
                "{call} bypasses the engine: it averages no gradients before DeepSpeed 0.18.3, and newer ones stop "
                "here under ZeRO 0 and in fp16",
                remedy("call engine.backward({loss})", loss=written(backward.loss)),
                call=written(backward.call),
                place=script.place(backward.call),
            )


def _is_from_engine(script: Script, backward: Backward) -> bool:
    """Whether a tensor's own backward pass begins at what DeepSpeed's engine computed."""
    calls = (n for n in script.names.feeding(backward.loss) if isinstance(n, ast.Call))
    return backward.by == "Tensor" and any(script.engines.is_prepared(call.func) for call in calls)


def _is_engine(call: Call, passes: Sequence[Backward]) -> bool:
    owners = {dotted(b.call.func.value) for b in passes if isinstance(b.call.func, ast.Attribute)}
    return isinstance(call.node.func, ast.Attribute) and dotted(call.node.func.value) in owners
