"""Updates: whether gradients are cleared, the scaler adapts, and the engine itself makes the step."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trainwiz.finding import Level, Violations, edited, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.edits import after
from trainwiz.script.training import Backward, remainder
from trainwiz.script.tree import constant, dotted


@rule("TW715", level=Level.ERROR, field="script")
def gradients_are_cleared(script: Script) -> Violations:
    """Call zero_grad once per update.

    Without it: each update uses the sum of all gradients since the start; the steps grow, and the loss diverges.
    Why: backward adds to .grad, and only zero_grad clears it. DeepSpeed's engine.step clears it by itself.
    Instead: call optimizer.zero_grad() after each optimizer.step().
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html; seen with torch 2.13
    """
    if not script.training.steps:
        return
    engines = {b.by for b in script.training.backwards}
    if "DeepSpeedEngine" in engines or script.clears_gradients:
        return
    learning = {loop for b in script.training.backwards for loop in script.origins.loops(b.call)}
    for step in script.training.steps:
        if not learning.isdisjoint(script.origins.loops(step)) and not _is_made_anew(script, step):
            yield violation(
                "zero_grad is never called: the gradients of all updates add up",
                edited(
                    remedy("call optimizer.zero_grad() after the step"),
                    after(script, step, f"{_object(step)}.zero_grad()"),
                ),
                place=script.place(step),
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
    if script.called("GradScaler.update"):
        return
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


@rule("TW717", level=Level.WARNING, field="script")
def deepspeeds_engine_steps(script: Script) -> Violations:
    """Under DeepSpeed, call engine.step() after every engine.backward().

    Without it: optimizer.step() leaves out what the engine does at an update: clipping, the scheduler, the loss scale
    and the count of micro-batches; under a condition, the engine counts fewer micro-batches than it saw.
    Why: the engine itself counts micro-batches up to gradient_accumulation_steps, and updates after the last one.
    Instead: call engine.backward(loss) and engine.step() for each micro-batch, and neither step nor zero_grad of the
    optimizer.
    Source: https://deepspeed.readthedocs.io/en/latest/training.html
    """
    passes = [b for b in script.training.backwards if b.by == "DeepSpeedEngine"]
    if not passes or not script.called("deepspeed.initialize"):
        return
    for step in script.training.steps:
        loops = script.origins.loops(step)
        before = [b for b in passes if loops and script.origins.loops(b.call)[:1] == loops[:1]]
        before = [b for b in before if not script.tree.exclusive(b.call, step)]
        if before and _is_of_engine(script, step):
            yield violation(
                "{call}: this bypasses the engine's own step",
                remedy("call engine.step() instead"),
                call=ast.unparse(step),
                place=script.place(step),
            )
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
        guards = script.tree.guards(call.node, within=loops[0]) if loops else []
        counted = [g for g in guards if remainder(script.training.expanded(g.test), g.positive)]
        each = [b for b in passes if loops and b.loop is loops[0]]
        if each and counted and not any(g in script.tree.guards(each[0].call, within=loops[0]) for g in counted):
            yield violation(
                "the engine counts micro-batches itself, but this step is under a condition",
                remedy("call engine.step() after every engine.backward(loss)"),
                place=script.place(call.node),
            )


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
    counts = script.training.windows or any(_by_accumulation(node, told) for node in script.tree.of(ast.BinOp))
    by_hand = not script.attributes.isdisjoint(("accumulate", "no_sync", "_set_sync_gradients"))
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


def _by_accumulation(node: ast.BinOp, told: ast.expr) -> bool:
    """Whether it is a remainder by what the Accelerator is told, or by what is called an accumulation."""
    if not isinstance(node.op, ast.Mod):
        return False
    by = ast.unparse(node.right)
    return by == ast.unparse(told) or (isinstance(node.right, ast.Name | ast.Attribute) and "accum" in by.lower())


def _is_made_anew(script: Script, step: ast.Call) -> bool:
    """Whether the optimizer is made in the very loop of its step, for something that has no gradient yet."""
    made = script.names.assigned(_object(step), step)
    loops = script.tree.loops(step)
    return bool(made and loops) and all(loops[0] in script.tree.loops(one.node) for one in made)


def _object(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _owner(call: Call) -> str:
    return dotted(call.node.func).rpartition(".")[0]


def _is_of_engine(script: Script, step: ast.Call) -> bool:
    """Whether an optimizer is what `deepspeed.initialize` returned, or was given."""
    owner = step.func.value if isinstance(step.func, ast.Attribute) else step
    made = script.origins.makers(owner)
    if any(isinstance(m, ast.Call) and script.names.resolved(m.func) == "deepspeed.initialize" for m in made):
        return True
    given = [v for c in script.called("deepspeed.initialize") for v in (c.keyword("optimizer"),) if v is not None]
    return any(dotted(value) == dotted(owner) for value in given if constant(value) is None)


def _is_engine(call: Call, passes: Sequence[Backward]) -> bool:
    owners = {dotted(b.call.func.value) for b in passes if isinstance(b.call.func, ast.Attribute)}
    return isinstance(call.node.func, ast.Attribute) and dotted(call.node.func.value) in owners
