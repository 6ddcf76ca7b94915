"""What every rank must do alike, so that the ranks go on with the same model."""

from __future__ import annotations

import ast
import re

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.training import counts_to_window, describe
from trainwiz.script.tree import Function, dotted, method, opened, written

_UPDATES = re.compile(r"(^|[._])ema(_\w+)?$|(^|[._]|_)ema$", re.IGNORECASE)
"""The names of what keeps a moving average of the weights."""
_FUNCTIONS = re.compile(r"^(update_?ema\w*|ema_?update\w*)$", re.IGNORECASE)
_EMA_METHODS = ("update", "step", "update_parameters", "ema_step")
_AVERAGES = re.compile(
    r"(?://?=?|\bdiv_?\(|\bmul_?\(1(?:\.0?)? /)\s*\(?(?:float\()?\s*[\w.\[\]'\"]*"
    r"(?:world|gpus|replicas|n_?procs?|num_proc|get_world_size|nranks|dp_size|WORLD|size\(\))|AVG",
    re.IGNORECASE,
)
"""A division by the number of ranks, or what makes one unnecessary."""


@rule("TW777", level=Level.WARNING, field="script")
def updates_are_made_by_every_rank(script: Script) -> Violations:
    """Step optimizer, scheduler and scaler on every rank.

    Without it: the other ranks keep old weights, an old learning rate or an old loss scale: the next gradients are the
    average of different models, and nothing fails.
    Why: DDP averages gradients, not weights; each rank makes the same update for itself.
    Instead: call step() and update() outside of conditions on the rank.
    Source: https://docs.pytorch.org/docs/stable/notes/ddp.html (optimizer step)
    """
    if not (script.engines.several or script.engines.distributed):
        return
    learning = {loop for b in script.training.backwards for loop in script.origins.loops(b.call)}
    steps = [*script.training.steps, *(c.node for c in script.called("Scheduler.step", "GradScaler.update"))]
    for step in dict.fromkeys(steps):
        guard = script.ranks.guard(step)
        if guard is None or learning.isdisjoint(script.origins.loops(step)) or _is_done_elsewhere(script, step, steps):
            continue
        yield violation(
            "{call} runs only on some ranks, under the condition {test}: the ranks no longer train the same model",
            remedy("call it on every rank, outside the condition"),
            call=written(step),
            test=describe(guard),
            place=script.place(step),
        )


def _is_done_elsewhere(script: Script, step: ast.Call, steps: list[ast.Call]) -> bool:
    """Whether the other branch of a condition makes the same update, or the passes before it are one rank's, too."""
    owner = dotted(step.func)
    same = [one for one in steps if one is not step and dotted(one.func) == owner]
    near = [one for one in same if script.tree.scope(one) is script.tree.scope(step)]
    if any(script.tree.exclusive(one, step) or script.ranks.guard(one) is not None for one in near):
        return True
    here = [b for b in script.training.backwards if script.tree.scope(b.call) is script.tree.scope(step)]
    return any(script.ranks.is_single(b.call) for b in here)


@rule("TW778", level=Level.WARNING, field="script")
def summed_gradients_are_averaged(script: Script) -> Violations:
    """If gradients are summed over the ranks by hand, divide them by the number of ranks.

    Without it: the gradient is N times that of the mean loss: with SGD, the learning rate is N times too high, and
    clipping at 1.0 cuts N times more.
    Why: all_reduce adds up unless it is told ReduceOp.AVG; DistributedDataParallel divides.
    Instead: divide by dist.get_world_size() after all_reduce, or use op=dist.ReduceOp.AVG.
    Source: https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html (distributed training)
    """
    if not script.training.steps:
        return
    for call in script.called("torch.distributed.all_reduce"):
        given = call.argument("tensor", 0)
        if given is None or not _is_gradient(given) or not script.is_reached(script.place(call.node)):
            continue
        if call.keyword("group") is not None or script.part(call.node).says(_AVERAGES):
            continue
        yield violation(
            "the gradients are summed over the ranks, but not divided by their number",
            remedy("divide by dist.get_world_size(), or use op=dist.ReduceOp.AVG"),
            place=script.place(call.node),
        )
        return


def _is_gradient(value: ast.expr) -> bool:
    """Whether a value is a gradient, or several of them put together."""
    if ".grad" in written(value):
        return True
    return re.search(r"(^|_)(all_)?grads?($|_)", dotted(value).rpartition(".")[2]) is not None


@rule("TW779", level=Level.WARNING, field="script")
def engines_step_their_scheduler(script: Script) -> Violations:
    """Under DeepSpeed, do not step a scheduler that the engine has.

    Without it: the schedule advances twice per update, or once per micro-batch as well: warm-up and decay end in half
    of the training or earlier.
    Why: engine.step() steps the scheduler that deepspeed.initialize was given, or made from its configuration, after
    each update.
    Instead: remove scheduler.step(); read the learning rate with scheduler.get_last_lr().
    Source: https://deepspeed.readthedocs.io/en/latest/schedulers.html; DeepSpeed 0.19, engine._take_model_step
    """
    begun = script.called("deepspeed.initialize")
    steps = [c for c in script.methods("step") if script.engines.kind(_owner(c)) == "DeepSpeedEngine"]
    given = {(script.tree.scope(c.node), dotted(v)) for c in begun if (v := c.keyword("lr_scheduler")) is not None}
    for call in script.called("Scheduler.step") if begun and steps else ():
        owner, loops = _owner(call), script.origins.loops(call.node)
        near = any(set(loops) & set(script.origins.loops(s.node)) for s in steps)
        apart = any(script.tree.exclusive(call.node, s.node) for s in steps)
        made = any(
            isinstance(m, ast.Call) and script.names.resolved(m.func) == "deepspeed.initialize"
            for m in script.origins.makers(owner)
        )
        held = isinstance(owner, ast.Attribute) and script.engines.kind(owner.value) == "DeepSpeedEngine"
        if near and not apart and (made or held or (script.tree.scope(call.node), dotted(owner)) in given):
            yield violation(
                "{call}: engine.step() already steps this scheduler",
                remedy("remove it"),
                call=written(call.node),
                place=script.place(call.node),
            )


@rule("TW780", level=Level.WARNING, field="script")
def averages_follow_updates(script: Script) -> Violations:
    """Update a moving average of the weights once per update, not after every micro-batch.

    Without it: with n micro-batches per update, the average moves n times as fast: a decay of 0.999 acts as 0.999**n.
    Why: between two updates the weights do not change, but the average moves towards them each time.
    Instead: call ema.update() under the condition of optimizer.step(), or if accelerator.sync_gradients is true.
    Source: https://huggingface.co/docs/diffusers/tutorials/basic_training; diffusers' text_to_image example
    """
    yield from _in_hooks(script)
    if not script.training.windows and script.accumulation is None:
        return
    for call in [*script.methods(*_EMA_METHODS), *script.calls_by(lambda name: bool(_FUNCTIONS.match(name)))]:
        owner = dotted(_owner(call)) if method(call.node) else ""
        if owner and not (_UPDATES.search(owner) or _FUNCTIONS.match(method(call.node))):
            continue
        loops = script.tree.loops(call.node)
        guards = script.tree.guards(call.node, within=loops[0]) if loops else []
        windows = [w for w in script.training.windows if loops and w.loop is loops[0]]
        counted = any(counts_to_window(w, g, script.training.expanded) for w in windows for g in guards)
        tests = [written(script.training.expanded(g.test)) for g in guards]
        asked = any(re.search(r"sync|%|step", test) and "resume" not in test for test in tests)
        accumulates = script.accumulation is not None and script.methods("accumulate") and _learns(script, call)
        if (windows and not counted) or (accumulates and not asked):
            yield violation(
                "{call} runs after every micro-batch, also where the weights did not change",
                remedy("call it under the condition of the update"),
                call=dotted(call.node.func),
                place=script.place(call.node),
            )
            return


def _in_hooks(script: Script) -> Violations:
    """The same in Lightning's hooks, which run after each batch, also between two updates."""
    for call in script.methods(*_EMA_METHODS) if script.engines.lightning else ():
        function = script.tree.scope(call.node)
        owner = dotted(_owner(call))
        batch = isinstance(function, Function) and function.name == "on_train_batch_end"
        asked = any(re.search(r"%|step|accum", ast.unparse(g.test)) for g in script.tree.guards(call.node))
        if batch and _UPDATES.search(owner) and not asked:
            yield violation(
                "{call} runs after every micro-batch, also where the weights did not change",
                remedy("call it in optimizer_step, or if the global step has changed"),
                call=dotted(call.node.func),
                place=script.place(call.node),
            )


def _learns(script: Script, call: Call) -> bool:
    """Whether a call is beside a backward pass by an Accelerator, in or after its accumulate() block."""
    loops = script.tree.loops(call.node)
    passes = [b for b in script.training.backwards if b.by == "Accelerator" and loops and b.loop is loops[0]]
    return any(opened(block, "accumulate") for b in passes for block in script.tree.withs(b.call))


def _owner(call: Call) -> ast.expr:
    return call.node.func.value if isinstance(call.node.func, ast.Attribute) else call.node.func
