"""When ranks synchronize gradients: no_sync, and what one accumulate() block contains."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.origins import argument
from trainwiz.script.training import Backward, remainder
from trainwiz.script.tree import Function, Guard, Loop, constant, dotted, opened, walk, written

_FLAG = "require_backward_grad_sync"
_PARTITIONING = {2, 3}
_STAGES = {"DeepSpeedPlugin": "zero_stage", "LowLevelZeroPlugin": "stage"}


@rule("TW728", level=Level.ERROR, field="script")
def the_last_micro_batch_synchronizes(script: Script) -> Violations:
    """The last micro-batch of a window must run outside no_sync.

    Without it: each rank steps with its own gradient; the models drift apart, and the saved model has learned from
    only 1/N of the data.
    Why: gradients are averaged over the ranks only in a backward pass outside no_sync.
    Instead: use no_sync for all micro-batches except the last; or use accelerate's accumulate().
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html (no_sync)
    """
    yield from _told_by_flag(script)
    yield from _opened_later(script)
    for call in _no_syncs(script):
        block = _block(script, call)
        inside = [b for b in script.training.backwards if block is not None and _is_in(script, b.call, block)]
        if block is not None and inside and not _chosen(script, call) and not _others(script, inside[0]):
            guards = script.tree.guards(block)
            tail = any(_is_boundary(script, inside[0], g.test) and g.positive for g in guards)
            if tail or not guards or _is_in_both_branches(script, inside[0]):
                yield violation(
                    "every backward pass is inside no_sync: gradients are never averaged over ranks",
                    remedy("run the last micro-batch of each window outside no_sync"),
                    place=script.place(call.node),
                )
        elif block is not None and any(
            _is_at_the_end(script, inside, g) for g in (*script.tree.guards(block), *_chosen(script, call))
        ):
            yield violation(
                "no_sync includes the last micro-batch of the window, which must synchronize",
                remedy("invert the condition"),
                place=script.place(call.node),
            )


@rule("TW729", level=Level.ERROR, field="script")
def partitioned_gradients_always_synchronize(script: Script) -> Violations:
    """no_sync does not work with ZeRO 2 and 3, nor with Gemini and LowLevelZero at stage 2.

    Without it: DeepSpeed stops with `no_sync context manager is incompatible with gradient partitioning logic of
    ZeRO stage N`; accelerator.no_sync silently does nothing there (≥ 1.10); Colossal-AI's plugins stop too.
    Why: a partitioned gradient must be reduced in every backward pass.
    Instead: let the engine accumulate (gradient_accumulation_steps), or use ZeRO 1.
    Source: seen with DeepSpeed 0.19.8 and Colossal-AI 0.5.0; huggingface/accelerate issue 3481, DeepSpeed issue
    6793
    """
    calls = _no_syncs(script)
    reason = _partitions(script) if calls else ""
    for call in calls if reason else ():
        fix = remedy("remove no_sync, and let the engine accumulate")
        yield violation("no_sync cannot be used with {reason}", fix, reason=reason, place=script.place(call.node))


@rule("TW730", level=Level.WARNING, field="script")
def one_pass_in_one_accumulate(script: Script) -> Violations:
    """Each accumulate() block must contain one forward and one backward pass of its model.

    Without it: the block counts as one micro-batch: the loss of each pass is divided by the number of blocks, and
    with two passes the gradient is twice that of the real batch; under DDP both passes synchronize, under DeepSpeed
    both may step.
    Why: accumulate() counts how often it is entered, not how often the model runs.
    Instead: use one block per pass; or add up the losses and call backward once.
    Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization
    """
    for block in script.tree.of(ast.With) if script.calls_of("accumulate") else ():
        counted = opened(block, "accumulate")
        if not counted:
            continue
        passes = [b for b in script.training.backwards if b.by == "Accelerator" and _is_in(script, b.call, block)]
        models = {dotted(a) for c in counted for a in c.args}
        if len(passes) < 2 or len(models) != 1 or script.tree.exclusive(passes[0].call, passes[1].call):
            continue
        runs = [c for c in script.calls if dotted(c.node.func) in models and _is_in(script, c.node, block)]
        if len(runs) >= 2 and not any(script.tree.exclusive(runs[0].node, r.node) for r in runs[1:]):
            yield violation(
                "{n} forward and backward passes in one accumulate() count as one micro-batch",
                remedy("put each pass into its own accumulate() block, or add the losses and call backward once"),
                n=len(passes),
                place=script.place(passes[1].call),
            )


def _opened_later(script: Script) -> Violations:
    """The same where no_sync() gets a name first, or a function chooses it: `context = model.no_sync()`."""
    later = [call.node for call in _no_syncs(script) if _block(script, call) is None]
    for node in (*later, *_named(script)):
        for block, guards in _later_blocks(script, node):
            loop = next(iter(script.tree.loops(block)), None)
            passes = [b for b in script.training.within(loop) if _turns(script, b, loop)] if loop is not None else []
            if passes and not guards and all(_is_in(script, b.call, block) for b in passes):
                yield violation(
                    "every backward pass is inside no_sync: gradients are never averaged over ranks",
                    remedy("run the last micro-batch of each window outside no_sync"),
                    place=script.place(node),
                )
            elif passes and any(_is_at_the_end(script, passes, g) or _is_last_turn(loop, g) for g in guards):
                yield violation(
                    "no_sync includes the last micro-batch of the window, which must synchronize",
                    remedy("invert the condition"),
                    place=script.place(node),
                )


def _named(script: Script) -> list[ast.Attribute]:
    """Where no_sync itself gets a name, to be called later: `context = model.no_sync`."""
    found = [n for n in script.tree.mentions("no_sync") if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)]
    return [n for n in found if getattr(script.tree.parent(n), "func", None) is not n]


def _turns(script: Script, backward: Backward, loop: Loop | None) -> bool:
    """Whether each turn of a loop makes this backward pass, itself or by a function."""
    return backward.loop is loop or (backward.loop is None and script.origins.loops(backward.call)[:1] == [loop])


def _is_last_turn(loop: Loop | None, guard: Guard) -> bool:
    """Whether a condition holds in the last turn of a loop, or at the end of each window that it counts from 0."""
    if not isinstance(loop, ast.For) or not isinstance(guard.test, ast.Compare):
        return False
    turns = {dotted(n) for n in walk(loop.target)} - {""}
    counted = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) in ("enumerate", "range")
    if not counted or len(loop.iter.args) != 1:  # type: ignore[attr-defined]
        return False
    modulo = remainder(guard.test, guard.positive)
    if modulo is not None:
        plus = modulo[0]
        next_one = isinstance(plus, ast.BinOp) and isinstance(plus.op, ast.Add) and constant(plus.right) == 1
        return next_one and constant(modulo[2]) == 0 and dotted(plus.left) in turns  # type: ignore[attr-defined]
    wanted = ast.Eq if guard.positive else ast.NotEq
    last = guard.test.comparators[0]
    ends = isinstance(last, ast.BinOp) and isinstance(last.op, ast.Sub) and constant(last.right) == 1
    return isinstance(guard.test.ops[0], wanted) and ends and dotted(guard.test.left) in turns


def _later_blocks(script: Script, node: ast.expr) -> list[tuple[ast.With, list[Guard]]]:
    """The with-blocks that open no_sync() by a name or a function, each with the conditions."""
    chosen = script.tree.parent(node)
    statement = script.tree.parent(chosen) if isinstance(chosen, ast.IfExp) else chosen
    guards = [g for g in script.tree.guards(node) if isinstance(statement, ast.Assign | ast.Return)]
    if isinstance(statement, ast.Assign):
        names = {dotted(target) for target in statement.targets} - {""}
        scope, loops = script.tree.scope(statement), script.tree.loops(statement)[:1]
        beside = [w for w in script.tree.of(ast.With) if script.tree.scope(w) is scope]
        found = [w for w in beside if script.tree.loops(w)[:1] == loops and _opens(w, names)]
        within = [*script.tree.guards(node, within=loops[0])] if loops else guards
        return [(block, within) for block in found]
    function = script.tree.scope(node)
    if not isinstance(statement, ast.Return) or not isinstance(function, Function):
        return []
    blocks = [(site, script.tree.parent(script.tree.parent(site) or site)) for site in script.origins.sites(function)]
    return [(w, [_as_given(function, g, site) for g in guards]) for site, w in blocks if isinstance(w, ast.With)]


def _opens(block: ast.With, names: set[str]) -> bool:
    opened_by = [item.context_expr for item in block.items]
    return any(dotted(one.func if isinstance(one, ast.Call) else one) in names for one in opened_by)


def _as_given(function: Function, guard: Guard, site: ast.Call) -> Guard:
    """A condition on a parameter, as the call gives it."""
    given = argument(function, dotted(guard.test), site)
    return guard if given is None else Guard(given, guard.positive)


def _told_by_flag(script: Script) -> Violations:
    """Flags that say when gradients are averaged: never, or in the first micro-batch of a window."""
    flags = [(c.node, c.keyword("enabled")) for c in script.methods("no_backward_sync")]
    for node, off in flags:
        block = script.tree.parent(script.tree.parent(node) or node)
        inside = [b for b in script.training.backwards if isinstance(block, ast.With) and _is_in(script, b.call, block)]
        if off is not None and constant(off) is True and inside:
            yield violation(
                "every backward pass is inside no_sync: gradients are never averaged over ranks",
                remedy("run the last micro-batch of each window outside no_sync"),
                place=script.place(node),
            )
        elif off is not None and inside and remainder(script.training.expanded(off), True):
            yield violation(
                "no_sync includes the last micro-batch of the window, which must synchronize",
                remedy("invert the condition"),
                place=script.place(node),
            )
    flagged = script.tree.of(ast.Assign) if script.has_attribute(_FLAG) else []
    assigned = (n for n in flagged if _is_sync_flag(n.targets[0]))
    told: list[tuple[ast.AST, ast.expr]] = [(n.targets[0], n.value) for n in assigned]
    told += [(c.node, c.node.args[0]) for c in script.methods("set_requires_gradient_sync") if c.node.args]
    for place, on in told:
        loops = script.tree.loops(place)
        if loops and _is_past_last_turn(loops[0], on):
            yield violation(
                "every backward pass is inside no_sync: gradients are never averaged over ranks",
                remedy("run the last micro-batch of each window outside no_sync"),
                place=script.place(place),
            )
        elif loops and (_is_first_turn(loops[0], on) or remainder(script.training.expanded(on), False)):
            yield violation(
                "gradients are averaged in the first micro-batch, but those of the last one stay on their rank",
                remedy("synchronize in the last micro-batch of each window"),
                place=script.place(place),
            )


def _is_sync_flag(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == _FLAG


def _is_first_turn(loop: Loop, test: ast.expr) -> bool:
    """Whether a condition holds in the first turn of a loop over a range of more than one."""
    if not isinstance(loop, ast.For) or not isinstance(test, ast.Compare) or not isinstance(loop.iter, ast.Call):
        return False
    counts = dotted(loop.iter.func) == "range" and len(loop.iter.args) == 1 and constant(loop.iter.args[0]) != 1
    first = isinstance(test.ops[0], ast.Eq) and constant(test.comparators[0]) == 0
    return counts and first and dotted(test.left) == dotted(loop.target) != ""


def _is_past_last_turn(loop: Loop, test: ast.expr) -> bool:
    """Whether a condition asks for the turn after the last one: `i == n` in `for i in range(n)`."""
    if not isinstance(loop, ast.For) or not isinstance(test, ast.Compare) or not isinstance(loop.iter, ast.Call):
        return False
    counts = dotted(loop.iter.func) == "range" and len(loop.iter.args) == 1 and isinstance(test.ops[0], ast.Eq)
    same = counts and written(test.comparators[0]) == written(loop.iter.args[0])
    return same and dotted(test.left) == dotted(loop.target) != ""


def _no_syncs(script: Script) -> list[Call]:
    return [call for call in script.methods("no_sync") if not _gives_on(script, call)]


def _gives_on(script: Script, call: Call) -> bool:
    """Whether this is what an engine's own no_sync is made of, or one of its plugins."""
    around = [a for a in script.tree.above(call.node) if isinstance(a, Function | ast.ClassDef)]
    return any(a.name == "no_sync" or (isinstance(a, ast.ClassDef) and a.name.endswith("Plugin")) for a in around)


def _is_in_both_branches(script: Script, backward: Backward) -> bool:
    """Whether the other branch of a condition around a backward pass has one, too; all of them are in no_sync."""
    scope = script.tree.scope(backward.call)
    return any(
        b is not backward and script.tree.scope(b.call) is scope and script.tree.exclusive(b.call, backward.call)
        for b in script.training.backwards
    )


def _chosen(script: Script, call: Call) -> list[Guard]:
    """The condition of `with model.no_sync() if condition else nullcontext():`, as far as it names the last one."""
    parent = script.tree.parent(call.node)
    return list(script.tree.guards(call.node)[:1]) if isinstance(parent, ast.IfExp) else []


def _block(script: Script, call: Call) -> ast.With | None:
    """The with-block that a no_sync() call opens, directly or beside another context."""
    item = script.tree.parent(call.node)
    item = script.tree.parent(item) if isinstance(item, ast.IfExp) else item
    block = script.tree.parent(item) if isinstance(item, ast.withitem) else None
    return block if isinstance(block, ast.With) else None


def _is_in(script: Script, node: ast.AST, block: ast.With) -> bool:
    return block in script.tree.withs(node)


def _others(script: Script, backward: Backward) -> bool:
    """Whether a backward pass of the same function is outside of no_sync."""
    openers = {_block(script, call) for call in _no_syncs(script)}
    scope = script.tree.scope(backward.call)
    return any(
        script.tree.scope(b.call) is scope and not openers.intersection(script.tree.withs(b.call))
        for b in script.training.backwards
    )


def _is_at_the_end(script: Script, inside: Sequence[Backward], guard: Guard) -> bool:
    """Whether a condition holds in the last micro-batch of a window."""
    steps = bool(inside) and guard.positive and _is_boundary(script, inside[0], guard.test)
    return steps or _is_last(guard.test, guard.positive) or _is_beside(script, inside, guard)


def _is_beside(script: Script, inside: Sequence[Backward], guard: Guard) -> bool:
    """Whether gradients are averaged in another micro-batch of each window than that of the step."""
    averaged = script.training.counted(guard.test, guard.positive, opposite=True)
    loops = {b.loop for b in inside}
    windows = [w for w in script.training.windows if w.loop in loops] if averaged else []
    due = [one for w in windows for one in script.training.counted(w.test, True)]
    known = [one for one in due if one[1] in {size for _, size, _ in averaged}]
    return bool(known) and not set(known) & set(averaged) and _starts_at_zero(loops)


def _starts_at_zero(loops: set[Loop | None]) -> bool:
    """Whether the loops count their own turns, so that two counters of the same loop can be compared."""
    return all(isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) for loop in loops)


def _is_last(test: ast.expr, positive: bool) -> bool:
    """Whether a condition says by its name that this is the last micro-batch."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_last(test.operand, not positive)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == positive:
        return any(_is_last(value, positive) for value in test.values)
    return positive and re.search(r"(^|[._])(is_)?last(_|$)", dotted(test)) is not None


def _is_boundary(script: Script, backward: Backward, test: ast.expr) -> bool:
    """Whether this is the condition under which the optimizer steps."""
    text = written(test)
    return any(w.backward.loop is backward.loop and written(w.test) == text for w in script.training.windows)


def _partitions(script: Script) -> str:
    """What in the script partitions gradients; empty if nothing does."""
    for call in (c for c in script.calls_of("GeminiPlugin", *_STAGES) if c.node in script.live):
        if call.last == "GeminiPlugin":
            return call.last
        stage = constant(call.keyword(_STAGES.get(call.last, "")))
        if stage in _PARTITIONING:
            return f"{call.last} ({stage})"
    dicts = script.tree.of(ast.Dict) if script.engines.deepspeed else []
    blocks = [value for node in dicts for value in _values(node, "zero_optimization") if isinstance(value, ast.Dict)]
    stages = [constant(value) for block in blocks[:1] for value in _values(block, "stage")]
    return next((f"ZeRO {stage}" for stage in stages if stage in _PARTITIONING), "")


def _values(one: ast.Dict, key: str) -> list[ast.expr]:
    return [v for k, v in zip(one.keys, one.values, strict=True) if constant(k) == key]
