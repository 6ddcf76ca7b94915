"""Backward passes and clipping, as the engine requires them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from trainwiz.finding import Fix, Level, Violations, edited, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.edits import instead, main_rank
from trainwiz.script.engines import BY_HAND
from trainwiz.script.idioms import without_deepspeed
from trainwiz.script.training import Backward, Window, counts_to_window
from trainwiz.script.tree import Function, dotted, opened, walk, written

_BACKWARD = {
    "Accelerator.prepare": "accelerator.backward",
    "Fabric.setup": "fabric.backward",
    "Fabric.setup_module": "fabric.backward",
    "Booster.boost": "booster.backward",
}
_FABRIC_SHARDS = re.compile(r"FSDPStrategy|DeepSpeedStrategy|16-mixed|strategy=.(fsdp|deepspeed)")
_FSDP = re.compile(r"(^|[._])(use_)?fsdp$", re.IGNORECASE)
_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")


@rule("TW710", level=Level.ERROR, field="script")
def accelerator_runs_backward(script: Script) -> Violations:
    """Under accelerate, use accelerator.backward(loss).

    Without it: fp16 gradients are not scaled (the optimizer step then fails with `No inf checks were recorded`), and
    the loss is not divided by the accumulation.
    Why: this method does the scaling, the division and the calls to DeepSpeed's engine. DeepSpeed's own engine accepts
    loss.backward() in recent versions.
    Instead: call accelerator.backward(loss); under Lightning's Fabric, fabric.backward(loss); under Colossal-AI,
    booster.backward(loss, optimizer).
    Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration (backward)
    """
    owner = next((name for call, name in _BACKWARD.items() if script.called(call)), "")
    # What is boosted without an optimizer, or compared with another model, has a backward pass of its own.
    other = owner == "booster.backward" and any(b.by in ("Booster", "Optimizer") for b in script.training.backwards)
    alone = owner == "accelerator.backward" and _prepares_models_only(script)
    if not owner or other or alone:
        return
    bypassing = ("Tensor", "GradScaler") if owner == "fabric.backward" else ("Tensor",)
    for backward in script.training.backwards:
        if backward.by not in bypassing:
            continue
        others = [b.call for b in script.training.backwards if b is not backward]
        inside = any(opened(block, "accumulate") for block in script.tree.withs(backward.call))
        if not inside and not _comes_from_prepared(script, backward.loss):
            continue  # another model's loss, such as that of a layer that is distilled alone
        told = any(g.positive and "accelerat" in written(g.test) for g in script.tree.guards(backward.call))
        if told or not any(script.tree.exclusive(backward.call, other) for other in others):
            yield violation(
                "{call}: this bypasses the engine's own backward",
                _through(script, backward, owner),
                call=written(backward.call),
                place=script.place(backward.call),
            )


@rule("TW711", level=Level.ERROR, field="script")
def accelerator_clips(script: Script) -> Violations:
    """Under accelerate, clip gradients with accelerator.clip_grad_norm_.

    Without it: in fp16, the gradients are clipped while still multiplied by the loss scale (65536), to almost
    nothing; under FSDP, each rank clips by the norm of its own shard; under DeepSpeed, nothing is clipped at all.
    Why: torch.nn.utils.clip_grad_norm_ knows neither scaler nor shards; DeepSpeed keeps its gradients elsewhere.
    Instead: call accelerator.clip_grad_norm_(model.parameters(), 1.0); under DeepSpeed, set gradient_clipping in
    its JSON file.
    Source: huggingface/accelerate issues 3807, 2791, 3509; seen with DeepSpeed 0.19.8
    """
    yield from _clipped_by_shards(script)
    for call in _torch_clips(script):
        begun = [c for c in script.called("deepspeed.initialize") if c.node in script.live]
        if begun and without_deepspeed(script, call.node):
            continue
        if begun and not script.engines.accelerate:
            yield violation(
                "{name} has no effect under DeepSpeed",
                remedy("set gradient_clipping in DeepSpeed's configuration"),
                name=dotted(call.node.func),
                place=script.place(call.node),
            )
        elif script.called("Accelerator.prepare") and not script.called("Accelerator.unscale_gradients"):
            name = dotted(call.node.func).rpartition(".")[2]
            yield violation(
                "torch's {name} ignores the loss scale and the shards; under DeepSpeed it has no effect",
                remedy("use accelerator.{name}", name=name),
                name=name,
                place=script.place(call.node),
            )


@rule("TW712", level=Level.ERROR, field="script")
def scaled_gradients_are_unscaled_before_clipping(script: Script) -> Violations:
    """With a GradScaler, call scaler.unscale_(optimizer) before clipping.

    Without it: gradients are clipped while still multiplied by the loss scale (65536 at first): their norm is far
    above any limit, and each update is clipped to almost nothing.
    Why: scaler.scale(loss) multiplies the loss, and only scaler.step divides the gradients again.
    Instead: call scaler.unscale_(optimizer), then clip, then call scaler.step(optimizer).
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html (gradient clipping)
    """
    scaled = [b for b in script.training.backwards if b.by == "GradScaler"]
    unscaled = any(call.name.endswith(".unscale_") for call in script.calls_of("unscale_"))
    for call in [*_torch_clips(script), *_own_clips(script)] if scaled else ():
        if all(script.tree.exclusive(call.node, b.call) for b in scaled):
            continue
        passes = [b.call for b in scaled]
        if (
            unscaled
            and not _is_of_other_scaler(script, call, passes)
            and not _is_unscaled_elsewhere(script, call, passes)
            and not _is_unscaled_later(script, call, passes)
        ):
            continue
        yield violation(
            "the gradients are clipped while they are still multiplied by the loss scale",
            remedy("call scaler.unscale_(optimizer) before clipping"),
            place=script.place(call.node),
        )


def _is_of_other_scaler(script: Script, clip: Call, passes: Sequence[ast.Call]) -> bool:
    """Whether gradients are clipped after the pass of a scaler that unscales none, beside one that does."""
    names = {id(one): _scaling(one) for one in passes}
    unscaling = {dotted(c.node.func).rpartition(".")[0] for c in script.calls_of("unscale_")}
    scope = script.tree.scope(clip.node)
    before = [one for one in passes if script.tree.scope(one) is scope and script.tree.is_before(one, clip.node)]
    last = max(before, key=script.tree.position, default=None)
    known = {names[id(one)] for one in passes}
    return last is not None and bool(known & unscaling) and bool(names[id(last)]) and names[id(last)] not in unscaling


def _is_unscaled_elsewhere(script: Script, clip: Call, passes: Sequence[ast.Call]) -> bool:
    """Whether gradients are clipped after the pass of one of several optimizers, and only another is unscaled."""
    scope, loops = script.tree.scope(clip.node), script.tree.loops(clip.node)[:1]
    here = [c.node for c in script.calls_of("unscale_") if script.tree.scope(c.node) is scope]
    near = [p for p in passes if script.tree.scope(p) is scope and script.tree.loops(p)[:1] == loops]
    before = [p for p in near if script.tree.is_before(p, clip.node)]
    if not here or len(near) < 2 or len(here) != len(script.calls_of("unscale_")) or not before:
        return False
    last = max(before, key=script.tree.position)
    return not any(script.tree.is_before(last, one) and script.tree.is_before(one, clip.node) for one in here)


def _is_unscaled_later(script: Script, clip: Call, passes: Sequence[ast.Call]) -> bool:
    """Whether a function that scales its loss unscales the gradients only after it has clipped them, or in a branch
    beside."""
    scope = script.tree.scope(clip.node)
    here = [c.node for c in script.calls_of("unscale_") if script.tree.scope(c.node) is scope]
    if not here or not any(script.tree.scope(one) is scope for one in passes):
        return False
    return not any(
        not script.tree.is_before(clip.node, one) and not script.tree.exclusive(one, clip.node) for one in here
    )


def _scaling(backward: ast.Call) -> str:
    """The scaler of `scaler.scale(loss).backward()`; empty: it is written otherwise."""
    scaled = backward.func.value if isinstance(backward.func, ast.Attribute) else None
    return dotted(scaled.func).rpartition(".")[0] if isinstance(scaled, ast.Call) else ""


@rule("TW713", level=Level.ERROR, field="script")
def clipping_waits_for_the_last_micro_batch(script: Script) -> Violations:
    """Clip once per update, before its step: under accumulate(), only if accelerator.sync_gradients is true.

    Without it: the sum so far is clipped after each micro-batch, and early micro-batches weigh less; in fp16, the
    second call fails with `unscale_() has already been called on this optimizer since the last update()`. Clipping
    after the step changes nothing.
    Why: accumulate() delays step and zero_grad automatically, but not the clipping.
    Instead: write `if accelerator.sync_gradients: accelerator.clip_grad_norm_(…)`; in a loop that counts micro-batches
    by hand, clip under the condition of the step.
    Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation (gradient clipping)
    """
    yield from _clipped_in_windows(script)
    yield from _clipped_in_inner_loops(script)
    yield from _clipped_too_late(script)
    clips = script.called("Accelerator.clip_grad_norm_", "Accelerator.clip_grad_value_", *_CLIPS)
    if not clips or (script.accumulation is None and script.makers("Accelerator")):
        return
    for call in clips:
        blocks = [w for w in script.tree.withs(call.node) if opened(w, "accumulate")]
        guards = script.tree.guards(call.node, within=blocks[0]) if blocks else []
        if blocks and not any(_waits(script, guard.test) for guard in guards):
            yield violation(
                "this clips after every micro-batch instead of once before the update",
                remedy("put it under: if accelerator.sync_gradients"),
                place=script.place(call.node),
            )


@rule("TW714", level=Level.ERROR, field="script")
def gradients_live_until_the_step(script: Script) -> Violations:
    """Call zero_grad after the step or before the backward pass, not between them.

    Without it: the optimizer steps with zero gradients; the loss does not change, and there is no error.
    Why: zero_grad discards what backward has just computed.
    Instead: call backward, then step, then zero_grad.
    Source: https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    """
    for scope in script.training.backwards:
        block = _block(script, scope.call)
        after = [(s, _method(script, s)) for s in block if script.tree.is_before(scope.call, s) and _updates(s)]
        if script.origins.loops(scope.call) and not any(method == "step" for _, method in after):
            before = [(s, _method(script, s)) for s in block if script.tree.is_before(s, scope.call) and _updates(s)]
            after = [*after, *before]  # of the next turn
        if after and after[0][1] == "zero_grad" and any(method == "step" for _, method in after):
            yield violation(
                "zero_grad is between backward and step: the update has no gradients",
                remedy("move it after the step"),
                place=script.place(after[0][0]),
            )
    yield from _cleared_in_windows(script)


def _cleared_in_windows(script: Script) -> Violations:
    """Gradients that are cleared for every micro-batch of a window, whose update should have the sum of them."""
    clears = [c for c in script.methods("zero_grad") if isinstance(c.node.func, ast.Attribute)]
    for window in script.training.windows:
        owner = window.step.func.value if isinstance(window.step.func, ast.Attribute) else window.step.func
        stepped = {dotted(v) for v in (*window.step.args, owner)}
        for call in clears:
            mine = dotted(call.node.func.value) in stepped  # type: ignore[attr-defined]
            if not mine or script.tree.loops(call.node)[:1] != [window.loop]:
                continue
            if _ends_turn(script, call.node) or script.tree.exclusive(call.node, window.step):
                continue
            guards = script.tree.guards(call.node, within=window.loop)
            if not any(counts_to_window(window, guard, script.training.expanded) for guard in guards):
                yield violation(
                    "zero_grad runs for every micro-batch: the update has only the gradients of the last one",
                    remedy("call zero_grad under the condition of the step"),
                    place=script.place(call.node),
                )
                return
    for backward in script.training.passes:
        stepped = {dotted(s.func.value) for s in _steps_after(script, backward)}  # type: ignore[attr-defined]
        for call in clears if stepped else ():
            here = script.tree.loops(call.node)[:1] == [backward.loop]
            mine = dotted(call.node.func.value) in stepped  # type: ignore[attr-defined]
            if here and mine and not script.tree.guards(call.node, within=backward.loop):
                yield violation(
                    "zero_grad runs for every micro-batch: the update has only the gradients of the last one",
                    remedy("call zero_grad after the step, outside this loop"),
                    place=script.place(call.node),
                )
                return


def _ends_turn(script: Script, call: ast.Call) -> bool:
    """Whether a turn ends behind a call, as where a batch is left out."""
    _, after = _around(script, call)
    return bool(after) and isinstance(after[-1], ast.Continue | ast.Break | ast.Return | ast.Raise)


def _steps_after(script: Script, backward: Backward) -> list[ast.Call]:
    """The updates after a loop over the micro-batches of each, where this loop has none itself."""
    around = script.origins.loops(backward.call)
    steps = [(s, script.origins.loops(s)) for s in script.training.steps]
    if backward.loop is None or len(around) < 2 or any(backward.loop in loops for _, loops in steps):
        return []
    return [s for s, loops in steps if loops[:1] == around[1:2] and script.tree.is_before(backward.loop, s)]


def _clipped_by_shards(script: Script) -> Violations:
    """torch's clipping of a model that FSDP 1 shards, or that a Fabric with shards or a loss scale trains."""
    own = [c for c in script.methods("clip_grad_norm_", "clip_gradients") if c.name not in _CLIPS]
    fabric = script.called("Fabric.setup", "Fabric.setup_module") and script.says(_FABRIC_SHARDS)
    wraps = [c for c in script.called(BY_HAND[0]) if isinstance(script.tree.statement(c.node), ast.Assign)]
    wraps = [c for c in wraps if "NO_SHARD" not in written(c.node)]
    yield from _in_sharded_branch(script)
    if own or not (fabric or (wraps and not script.called(BY_HAND[1]))):
        return
    for call in _torch_clips(script):
        norm = call.last == "clip_grad_norm_" and "parameters" in written(call.node.args[0])
        tests = " ".join(written(guard.test) for guard in script.tree.guards(call.node))
        if wraps and _is_overridden(script, call, wraps):
            continue
        if norm and not re.search(r"fsdp|shard|strategy|deepspeed", tests, re.IGNORECASE):
            yield violation(
                "torch's {name} clips by the norm of this rank's shard, or of scaled gradients",
                remedy("use fabric.clip_gradients") if fabric else remedy("use the clip_grad_norm_ of the FSDP model"),
                name=call.last,
                place=script.place(call.node),
            )


def _in_sharded_branch(script: Script) -> Violations:
    """torch's clipping in a branch for FSDP: `if args.fsdp: torch.nn.utils.clip_grad_norm_(…)`."""
    for call in _torch_clips(script) if script.names.imported("torch.distributed.fsdp") else ():
        guards = [g for g in script.tree.guards(call.node) if _FSDP.search(written(g.test))]
        inside = [g for g in guards if g.positive and isinstance(g.test, ast.Name | ast.Attribute)]
        if inside and len(inside) == len(guards) and call.last == "clip_grad_norm_":
            yield violation(
                "torch's {name} clips by the norm of this rank's shard, or of scaled gradients",
                remedy("use the clip_grad_norm_ of the FSDP model"),
                name=call.last,
                place=script.place(call.node),
            )


def _is_overridden(script: Script, clip: Call, wraps: Sequence[Call]) -> bool:
    """Whether a method clips for models that nothing wraps: the classes that wrap theirs have one of their own."""
    function = script.tree.scope(clip.node)
    mine = script.tree.parent(function)
    kinds = [next((a for a in script.tree.above(c.node) if isinstance(a, ast.ClassDef)), None) for c in wraps]
    if not isinstance(function, Function) or not isinstance(mine, ast.ClassDef):
        return False
    names = [{f.name for f in kind.body if isinstance(f, Function)} for kind in kinds if kind is not None]
    return mine not in kinds and len(names) == len(kinds) and all(function.name in one for one in names)


def _through(script: Script, backward: Backward, owner: str) -> Fix:
    """The remedy that calls the engine's method instead."""
    loss = written(backward.loss)
    if owner == "booster.backward":
        return remedy("booster.backward({loss}, optimizer)", loss=loss)
    fix = remedy("{owner}({loss})", owner=owner, loss=loss)
    if owner != "accelerator.backward":
        return fix
    name = main_rank(script, backward.call).rpartition(".is_main_process")[0]
    call = f"{name}.backward({loss})"
    return edited(fix, instead(script, backward.call, call) if name else ())


def _clipped_in_windows(script: Script) -> Violations:
    """Clipping in every turn of a loop that counts its micro-batches by hand."""
    for window in (*script.training.windows, *script.training.split):
        for call in script.methods("clip_grad_norm_", "clip_grad_value_"):
            loops = script.tree.loops(call.node)
            guards = script.tree.guards(call.node, within=window.loop) if loops[:1] == [window.loop] else None
            every = guards is not None and not any(
                counts_to_window(window, g, script.training.expanded) for g in guards
            )
            every = every or _clips_beside(script, call.node, window)
            every = every and not script.tree.exclusive(call.node, window.step)
            if every and window.backward.by not in ("DeepSpeedEngine", "Booster"):
                yield violation(
                    "this clips after every micro-batch instead of once before the update",
                    remedy("put it under: if {test}", test=written(window.test)),
                    place=script.place(call.node),
                )


def _clips_beside(script: Script, clip: ast.Call, window: Window) -> bool:
    """Whether a function that is told when to step clips each time: `if stepping: optimizer.step()`."""
    function = script.tree.scope(window.step)
    if function is script.tree.scope(window.loop) or script.tree.scope(clip) is not function or script.tree.loops(clip):
        return False
    told = {written(g.test) for g in script.tree.guards(window.step)}
    return bool(told) and told.isdisjoint(written(g.test) for g in script.tree.guards(clip))


def _clipped_in_inner_loops(script: Script) -> Violations:
    """Clipping beside the backward pass, in a loop over micro-batches that the step comes after."""
    for backward in script.training.passes:
        if not _steps_after(script, backward):
            continue
        for call in script.methods("clip_grad_norm_", "clip_grad_value_"):
            if script.tree.loops(call.node)[:1] == [backward.loop] and not script.tree.guards(
                call.node, within=backward.loop
            ):
                yield violation(
                    "this clips after every micro-batch instead of once before the update",
                    remedy("clip once, between the loop and the step"),
                    place=script.place(call.node),
                )


def _clipped_too_late(script: Script) -> Violations:
    """Clipping behind the update that should have had the clipped gradients."""
    passes, steps = {b.call for b in script.training.backwards}, set(script.training.steps)
    for call in script.methods("clip_grad_norm_", "clip_grad_value_", "clip_gradients") if steps else ():
        before, after = _around(script, call.node)
        events = [node for statement in before for node in walk(statement) if node in passes or node in steps]
        clips = [n for s in before for n in walk(s) if isinstance(n, ast.Call) and "clip" in dotted(n.func)]
        coming = [node for statement in after for node in walk(statement) if node in passes or node in steps]
        if events and events[-1] in steps and not clips and not (coming and coming[0] in steps):
            yield violation(
                "the gradients are clipped after the update, which has used them unclipped",
                remedy("clip between the backward pass and the step"),
                place=script.place(call.node),
            )


def _around(script: Script, call: ast.Call) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements before and after that of a call in its block."""
    statement = script.tree.statement(call)
    parent = script.tree.parent(statement) if statement is not None else None
    for name in ("body", "orelse"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            index = block.index(statement)
            return block[:index], block[index + 1 :]
    return [], []


def _comes_from_prepared(script: Script, loss: ast.expr) -> bool:
    """Whether a prepared model computed this, or a loss function that gets one."""
    for node in script.names.feeding(loss):
        if isinstance(node, ast.Call):
            makes = any(word in dotted(node.func).lower() for word in ("loss", "step", "forward", "criterion"))
            if _is_by_hand(script, node.func):
                return False  # a baseline beside the engine's own loop
            if script.engines.is_prepared(node.func) or (makes and any(map(script.engines.is_prepared, node.args))):
                return True
            if any(_holds_prepared(script, value) for value in node.args):
                return True
            if any(script.engines.is_prepared(k.value) for k in node.keywords if dotted(k.value)):
                return True
    return False


def _holds_prepared(script: Script, value: ast.expr) -> bool:
    """Whether an object was made with a prepared model: `ScoreModel(model)`."""
    made = script.origins.makers(value) if isinstance(value, ast.Name) else ()
    objects = [m for m in made if isinstance(m, ast.Call) and dotted(m.func).rpartition(".")[2][:1].isupper()]
    return any(script.engines.is_prepared(given) for m in objects for given in m.args[:1])


def _is_by_hand(script: Script, model: ast.expr) -> bool:
    """Whether the script itself wrapped a model with DDP or FSDP here."""
    latest = script.names.latest(dotted(model), model) if dotted(model) else None
    value = latest.value if latest is not None and latest.scope is script.tree.scope(model) else None
    return isinstance(value, ast.Call) and script.names.resolved(value.func) in BY_HAND


def _torch_clips(script: Script) -> list[Call]:
    calls = [call for call in script.called(*_CLIPS) if call.node.args and not _is_in_optimizer(script, call)]
    # Apex has no scaler to ask, and gives the unscaled gradients for clipping.
    return [call for call in calls if "master_params(" not in written(call.node.args[0])]


def _own_clips(script: Script) -> list[Call]:
    """The calls of the project's own functions that clip gradients."""
    return [c for c in script.calls_like("^clip_(grad|gradients)") if script.origins.called(c.node) is not None]


def _is_in_optimizer(script: Script, call: Call) -> bool:
    """Whether an optimizer of the script's own clips in its step, where engines hand it the final gradients."""
    kinds = [a for a in script.tree.above(call.node) if isinstance(a, ast.ClassDef)]
    return any(dotted(base).endswith("Optimizer") for kind in kinds for base in kind.bases)


def _waits(script: Script, test: ast.expr) -> bool:
    return any(
        (isinstance(n, ast.Attribute) and n.attr == "sync_gradients") or isinstance(n, ast.Mod)
        for n in script.names.feeding(test)
    )


def _block(script: Script, call: ast.Call) -> list[ast.stmt]:
    """The block that contains a call, if the call is a whole statement."""
    statement = script.tree.parent(call)
    parent = script.tree.parent(statement) if isinstance(statement, ast.Expr) else None
    for name in ("body", "orelse"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def _prepares_models_only(script: Script) -> bool:
    """Whether the Accelerator gets nothing but a model, so that it has no loss scale and no accumulation."""
    given = [call.node.args for call in script.called("Accelerator.prepare")]
    one = all(len(args) == 1 and not isinstance(args[0], ast.Starred) for args in given)
    models = one and all("model" in dotted(args[0]).lower() for args in given)
    return models and script.accumulation is None


def _updates(statement: ast.stmt) -> bool:
    """Whether a statement has a step or a zero_grad in it, or ends the turn."""
    ends = [n for n in walk(statement) if isinstance(n, ast.Break | ast.Continue | ast.Return)]
    calls = [n for n in walk(statement) if isinstance(n, ast.Attribute) and n.attr in ("step", "zero_grad")]
    return bool(ends or calls)


def _method(script: Script, statement: ast.stmt) -> str:
    """`step` or `zero_grad` if the statement calls that on an optimizer; empty for a scheduler."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in ("step", "zero_grad"):
            if script.engines.kind(function.value) in ("Optimizer", "GradScaler"):
                return function.attr
            return "" if script.engines.kind(function.value) == "Scheduler" else "other"
    return "other"
