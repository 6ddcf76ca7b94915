"""Windows of micro-batches: where the update falls, what is left over, and how the loss is scaled."""

from __future__ import annotations

import ast
import re

from trainwiz.finding import Level, Violation, Violations, remedy, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.outline import Outline
from trainwiz.script.training import Backward, Window, remainder
from trainwiz.script.tree import Loop, constant, dotted, method, operates, walk, written

_ACCUMULATION = re.compile(r"accum|micro", re.IGNORECASE)
_MODEL = re.compile(r"(^|[._])(model|net|network|engine|ddp|fsdp)$")
"""What models are called."""
_SCALED = re.compile(r"grad|\blr\b|learning_rate|param")
"""In what scales gradients or the learning rate, and not a number for the log."""
_STEPS = re.compile(r"accum|acc_steps|acc_iter", re.IGNORECASE)
_RANKS = re.compile(r"(^|[._])(world_?size|num_gpus|n_?gpus?|get_world_size\(\))$", re.IGNORECASE)
"""Numbers of ranks, by which DDP divides the gradients itself."""
_DIVISORS = re.compile(r"accum|acc_|steps?\b|micro|num_|count|total|tokens|batch", re.IGNORECASE)
"""In what a function may divide a loss by, so that an update has the mean of its micro-batches."""
_KEPT = re.compile(r"^accum\w*_(features?|outputs?|logits|embed\w*)$")
"""The names of what is kept of all micro-batches, for a loss of all of them."""
_OWN_DIVISION = ("Accelerator", "DeepSpeedEngine")


@rule("TW720", level=Level.ERROR, field="script")
def updates_follow_whole_windows(script: Script) -> Violations:
    """Update after every n micro-batches: (i + 1) % n == 0 if the counter starts at 0.

    Without it: with `i % n == 0`, the first update sees only 1 micro-batch while the loss is divided by n, and each
    later update mixes the rest of one window with the start of the next.
    Why: i is 0 in the first iteration, and 0 % n is 0.
    Instead: write `if (i + 1) % n == 0`, or use enumerate(loader, 1); or use accelerate's accumulate().
    Source: seen with 13 batches and n = 4; accelerate's complete_nlp_example.py has it
    """
    yield from _cleared_by_windows(script)
    for window in script.training.windows:
        if window.early and not _is_less_one(window.size):
            size = written(window.size)
            known = constant(window.size)
            if isinstance(known, int) and window.early % known == 0:
                continue
            message = say(
                "micro-batches before the first update: {n}; a full window has {size}", n=-window.early, size=size
            )
            if window.early > 0:
                message = say(
                    "micro-batches missing at the first update: {n}; a full window has {size}",
                    n=window.early,
                    size=size,
                )
            yield Violation(
                message,
                remedy("use if (i + 1) % {size} == 0, with a counter that starts at 0", size=size),
                place=script.place(window.test),
            )


def _cleared_by_windows(script: Script) -> Violations:
    """Steps in every micro-batch of a loop that clears the gradients after every n-th: `if (i + 1) % n == 0`."""
    for step in script.training.steps:
        loop = next((one for one in script.tree.loops(step) if one in script.training.loops), None)
        if loop is None or any(w.step is step for w in (*script.training.windows, *script.training.split)):
            continue
        clears = [c.node for c in script.methods("zero_grad") if loop in script.tree.loops(c.node)]
        always = all(_counted(script, one, loop) is None for one in (step, *_passes(script, loop)))
        sizes = [_counted(script, one, loop) for one in clears]
        if always and sizes and sizes[0] is not None and None not in sizes:
            yield violation(
                "the optimizer steps after every micro-batch, but the gradients are cleared after every {size}",
                remedy("step under the same condition as zero_grad"),
                size=written(sizes[0]),
                place=script.place(step),
            )
            return


def _passes(script: Script, loop: Loop) -> list[ast.Call]:
    return [b.call for b in script.training.backwards if b.loop is loop]


def _counted(script: Script, node: ast.AST, loop: Loop) -> ast.expr | None:
    """The number of turns after which a node is reached, by a condition with a modulo."""
    for guard in script.tree.guards(node, within=loop):
        modulo = remainder(script.training.expanded(guard.test), guard.positive)
        if modulo is not None:
            return modulo[1]
    return None


@rule("TW721", level=Level.ERROR, field="script")
def windows_are_not_one_short(script: Script) -> Violations:
    """Take the counter modulo n, not modulo n - 1.

    Without it: with n = 4 and 13 batches, the updates see 1, 3, 3, 3 and 3 micro-batches while the loss is divided
    by 4; n = 2 updates on every batch; n = 1 divides by zero.
    Why: the condition comes from Colossal-AI's gradient accumulation tutorial, and is often copied from there.
    Instead: write `if (i + 1) % n == 0`.
    Source: https://colossalai.org/docs/features/gradient_accumulation_with_booster/; seen by running it
    """
    for window in script.training.windows:
        if _is_less_one(window.size):
            size = written(window.size.left)  # type: ignore[attr-defined]
            yield violation(
                "updates happen every {size} - 1 micro-batches, but the loss is divided by {size}",
                remedy("use if (i + 1) % {size} == 0, with a counter that starts at 0", size=size),
                size=size,
                place=script.place(window.test),
            )


@rule("TW722", level=Level.WARNING, field="script")
def the_last_window_counts(script: Script) -> Violations:
    """Update after the leftover micro-batches at the end of an epoch too, or drop them on purpose.

    Without it: their gradients stay in .grad and are added to the first update of the next epoch, although they
    come from older weights; at the end of the training they are lost.
    Why: len(loader) is rarely a multiple of n, and zero_grad is called only after an update.
    Instead: write `if (i + 1) % n == 0 or i + 1 == len(loader)`; accelerate's accumulate() does this automatically.
    Source: accelerate's complete_nlp_example.py has it;
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
    """
    for window in script.training.windows:
        if not window.tail and not _skips_tail(script, window):
            yield violation(
                "micro-batches after the last full window of {size} in an epoch carry over into the next epoch",
                remedy("also update when i + 1 == len(loader)"),
                size=written(window.size),
                place=script.place(window.test),
            )


def _skips_tail(script: Script, window: Window) -> bool:
    """Whether a loop leaves out what follows its last whole window: `if i // n >= windows: continue`."""
    for statement in window.loop.body:
        if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Continue | ast.Break):
            continue
        if not isinstance(statement.test, ast.Compare):
            continue  # a limit that may not be given
        fed = [
            n for part in walk(statement.test) if isinstance(part, ast.Name | ast.BinOp) for n in _made(script, part)
        ]
        counted = [n for n in fed if operates(n, ast.FloorDiv, ast.Mod) and written(n.right) == written(window.size)]  # type: ignore[attr-defined]
        if counted and script.tree.is_before(statement, window.backward.call):
            return True
    return False


def _made(script: Script, part: ast.AST) -> list[ast.AST]:
    """A part of a condition, with what its name was assigned."""
    return [part, *(a.value for a in script.names.assigned(dotted(part), part))] if dotted(part) else [part]


@rule("TW723", level=Level.ERROR, field="script")
def accumulated_losses_are_divided(script: Script) -> Violations:
    """If you accumulate over n micro-batches by hand, divide the loss by n.

    Without it: the gradient is n times that of the real batch; with SGD, the learning rate is n times too high, and
    clipping at 1.0 cuts n times more.
    Why: gradients add up in .grad.
    Instead: write `loss = loss / n` before backward.
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html (gradient accumulation)
    """
    yield from _inner_windows(script)
    for window in (*script.training.windows, *script.training.split):
        if window.backward.by in ("DeepSpeedEngine", "Booster") or _is_less_one(window.size):
            continue
        if _divides(script):
            continue
        if (scale := _other_scale(script, window)) is not None:
            yield _scaled_otherwise(script, window, scale)
        elif not _is_scaled(script, window):
            yield violation(
                "the gradients of {size} micro-batches are added up, but the loss is not divided",
                remedy("divide the loss by {size} before calling backward", size=written(window.size)),
                size=written(window.size),
                place=script.place(window.backward.call),
            )


@rule("TW770", level=Level.WARNING, field="script")
def divided_losses_are_accumulated(script: Script) -> Violations:
    """If the loss is divided by the accumulation, update once per window, not after every micro-batch.

    Without it: each update uses the gradient of one micro-batch, divided by n: the real batch is n times smaller than
    planned, and with SGD the learning rate as well.
    Why: the division makes the sum of n gradients their mean; it needs n backward passes before the step.
    Instead: step under `if (i + 1) % n == 0`, or remove the division.
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html (gradient accumulation)
    """
    windows = {w.loop for w in script.training.windows}
    for backward in script.training.backwards:
        loop = backward.loop
        if backward.by not in ("Tensor", "GradScaler") or loop is None or loop in windows:
            continue
        steps = [s for s in script.training.steps if script.tree.loops(s)[:1] == [loop]]
        every = [s for s in steps if all(constant(g.test) is True for g in script.tree.guards(s, within=loop))]
        fed = (n for n in script.names.feeding(backward.loss) if operates(n, ast.Div))
        sizes = [n.right for n in fed if loop in script.tree.loops(n)]  # type: ignore[attr-defined]
        size = next((n for n in sizes if dotted(n) and _STEPS.search(dotted(n))), None)
        same = [b for b in script.training.backwards if written(b.loss) == written(backward.loss)]
        if every and len(same) == 1 and size is not None:
            yield violation(
                "the loss is divided by {size}, but every micro-batch is an update",
                remedy("step after {size} micro-batches, or remove the division", size=written(size)),
                size=written(size),
                place=script.place(every[0]),
            )


@rule("TW724", level=Level.ERROR, field="script")
def losses_are_divided_once(script: Script) -> Violations:
    """Do not divide the loss by the accumulation if accelerator.backward or engine.backward already does.

    Without it: the gradient is n times too small; its ratio to weight decay and clipping is no longer the intended
    one.
    Why: both accelerator.backward and DeepSpeed's engine.backward divide the loss by the accumulation they were
    given; a script written for plain torch divides it again.
    Instead: pass the undivided loss; or remove gradient_accumulation_steps and count by hand.
    Source: accelerate 1.15, Accelerator.backward; https://deepspeed.readthedocs.io/en/latest/training.html
    """
    for backward in script.training.backwards:
        if backward.by not in _OWN_DIVISION:
            continue
        if any(k.arg == "scale_wrt_gas" and constant(k.value) is False for k in backward.call.keywords):
            continue
        fed = script.names.feeding(backward.loss)
        made = [n for n in fed if isinstance(n, ast.BinOp) and _is_of_loss(script, n)]
        division = next((n for n in made if operates(n, ast.Div) and _is_told(script, backward, n.right)), None)
        if division is not None and script.tree.exclusive(division, backward.call):
            continue
        # A loss that is also multiplied is scaled by a count, not by the accumulation.
        line = script.tree.statement(division) if division is not None else None
        scaled = [n for n in made if operates(n, ast.Mult) and script.tree.statement(n) is line]
        if division is not None and not scaled:
            name = dotted(backward.call.func)
            yield violation(
                "{name} already divides by the accumulation, and this line divides again",
                remedy("remove the division"),
                name=name,
                place=script.place(division),
            )


def _inner_windows(script: Script) -> Violations:
    """Windows that are loops of their own, `for _ in range(accumulation): …`, with the step after them."""
    for backward in script.training.passes:
        loop, by = next(iter(script.origins.loops(backward.call)), None), backward.by
        if by not in ("Tensor", "GradScaler", "Accelerator", "Fabric") or not isinstance(loop, ast.For):
            continue
        if not isinstance(loop.iter, ast.Call) or (by == "Accelerator" and script.accumulation is not None):
            continue
        size = loop.iter.args[0] if dotted(loop.iter.func) == "range" and len(loop.iter.args) == 1 else None
        if size is None or not _ACCUMULATION.search(written(size)) or constant(size) is not None:
            continue
        steps = [s for s in script.training.steps if script.tree.scope(s) is script.tree.scope(loop)]
        steps = steps or _leading_to_steps(script, loop)
        after = [s for s in steps if loop not in script.tree.loops(s) and script.tree.is_before(loop, s)]
        if by == "Accelerator" and _divides(script) and not _divides_another(script, backward, size):
            continue
        window = Window(loop, after[0], backward, size, size, None, True) if after else None
        if window is not None and (scale := _other_scale(script, window)) is not None:
            yield _scaled_otherwise(script, window, scale)
        elif window is not None and not _is_scaled(script, window, loop):
            yield violation(
                "the gradients of {size} micro-batches are added up, but the loss is not divided",
                remedy("divide the loss by {size} before calling backward", size=written(size)),
                size=written(size),
                place=script.place(backward.call),
            )


def _scaled_otherwise(script: Script, window: Window, scale: ast.BinOp) -> Violation:
    return violation(
        "the gradients of {size} micro-batches are added up, but {scale} does not make the sum their mean",
        remedy("divide the loss by {size} before calling backward", size=written(window.size)),
        size=written(window.size),
        scale=written(scale),
        place=script.place(scale.left),
    )


def _other_scale(script: Script, window: Window) -> ast.BinOp | None:
    """The only scaling of the loss in a window, where it surely is none by the number of micro-batches."""
    loss, size = window.backward.loss, written(window.size)
    fed = script.names.feeding(loss, past=lambda n: _is_forward(script, n))
    scales = [n for n in fed if operates(n, ast.Div, ast.Mult) and _is_loss_in(script, n.left, window.loop)]  # type: ignore[attr-defined]
    if len(scales) != 1 or _scales_gradients(script, window):
        return None
    scale = scales[0]
    assert isinstance(scale, ast.BinOp)
    if isinstance(scale.op, ast.Mult):
        return scale if written(scale.right) == size else None
    by = written(scale.right)
    if _RANKS.search(by) or (isinstance(scale.right, ast.Call) and dotted(scale.right.func) == "len"):
        told = (written(n) for n in script.names.feeding(scale.right) if isinstance(n, ast.expr))
        return None if size in told or _STEPS.search(by) else scale
    return None


def _is_loss_in(script: Script, node: ast.expr, loop: Loop) -> bool:
    """Whether this is called a loss, and not one of another loop of the same function."""
    here = script.tree.scope(node) is script.tree.scope(loop)
    return dotted(node).lower().endswith("loss") and (not here or loop in script.tree.loops(node))


def _leading_to_steps(script: Script, loop: Loop) -> list[ast.Call]:
    """The calls beside a loop of what makes the update: `manager.step_optimizers()`."""
    stepping = {script.tree.scope(step) for step in script.training.steps}
    beside = getattr(script.tree.parent(loop), "body", [])
    calls = (s.value for s in beside if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call))
    return [call for call in calls if script.origins.called(call) in stepping]


def _meant(script: Script, divisor: ast.expr) -> list[str]:
    """What a name was assigned, as a number or not: `n = int(args.n)`."""
    values = [a.value for a in script.names.assigned(dotted(divisor), divisor) if a.alone] if dotted(divisor) else []
    return [written(v.args[0] if isinstance(v, ast.Call) and dotted(v.func) == "int" and v.args else v) for v in values]


def _divides_another(script: Script, backward: Backward, size: ast.expr) -> bool:
    """Whether the loss of another backward pass is divided by the size, so that the engine is not meant to."""
    others = (b.loss for b in script.training.backwards if b is not backward)
    divisors = (n.right for loss in others for n in walk(loss) if operates(n, ast.Div))  # type: ignore[attr-defined]
    return any(written(one) == written(size) for one in divisors)


def _is_of_loss(script: Script, node: ast.AST) -> bool:
    """Whether a computation is of a loss, not of what the model is given."""
    statement = script.tree.statement(node)
    return statement is not None and re.search("loss|backward", written(statement), re.IGNORECASE) is not None


def _is_less_one(size: ast.expr) -> bool:
    return operates(size, ast.Sub) and constant(size.right) == 1  # type: ignore[attr-defined]


def _is_scaled(script: Script, window: Window, within: Loop | None = None) -> bool:
    """Whether the loss is scaled somewhere: divided, multiplied, or computed by a call that gets the size.

    What stands outside of `within` in its function is another loss of the same name.
    """
    if any(isinstance(n, ast.Name) and _KEPT.search(n.id) for n in walk(window.loop)):
        return True  # a loss of all micro-batches at once, as contrastive losses are
    size = written(window.size)
    losses = dict.fromkeys((window.backward.loss, *script.training.losses(window.backward)))
    for node in (n for one in losses for n in script.names.feeding(one, past=lambda n: _is_forward(script, n))):
        here = within is not None and script.tree.scope(node) is script.tree.scope(within)
        if here and within not in script.tree.loops(node):
            continue
        if operates(node, ast.Div, ast.Mult) or method(node) in ("div", "mul", "div_", "mul_"):
            return True
        if isinstance(node, ast.Call):
            given = (written(value) for value in (*node.args, *(k.value for k in node.keywords)))
            if size in given and _is_of_loss(script, node):
                return True
            function = script.names.function(dotted(node.func).rpartition(".")[2])
            if function and any(map(_divides_by_count, walk(function))):
                return True
    return _scales_gradients(script, window)


def _divides_by_count(node: ast.AST) -> bool:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return _DIVISORS.search(written(node.value)) is not None
    return operates(node, ast.Div) and _DIVISORS.search(written(node.right)) is not None  # type: ignore[attr-defined]


def _is_forward(script: Script, node: ast.AST) -> bool:
    """Whether a call runs the model: what it is given does not scale its loss."""
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, ast.Call) and (
        _MODEL.search(dotted(called)) is not None or script.engines.is_prepared(called)
    )


def _scales_gradients(script: Script, window: Window) -> bool:
    """Whether the gradients or the learning rate are scaled instead of the loss."""
    scope = script.tree.scope(window.step)
    for node in walk(scope):
        if scope is script.tree.module and script.tree.scope(node) is not scope:
            continue
        scales = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div | ast.Mult)
        scales = scales or (isinstance(node, ast.Call) and method(node) in ("div_", "mul_"))
        around = [written(loop.iter) for loop in script.tree.loops(node)[:1] if isinstance(loop, ast.For)]
        if scales and _SCALED.search(" ".join([written(node), *around])):
            return True
    return False


def _divides(script: Script) -> bool:
    """Whether the Accelerator divides the loss, or may do so because of arguments that are unpacked."""
    return script.accumulation is not None or any(c.has_spread() for c in script.called("accelerate.Accelerator"))


def _told_to_engine(outline: Outline) -> list[ast.expr]:
    """What DeepSpeed's configuration gets as its accumulation."""
    found = [v for node in outline.of(ast.Dict) for k, v in zip(node.keys, node.values, strict=True) if _is_size(k)]
    stored = [n.__dict__["_parent"] for n in outline.of(ast.Subscript) if isinstance(n.ctx, ast.Store)]
    return found + [n.value for n in stored if isinstance(n, ast.Assign) and _is_size(n.targets[0])]


def _is_size(key: ast.expr | None) -> bool:
    named = key.slice if isinstance(key, ast.Subscript) else key
    return isinstance(named, ast.Constant) and named.value == "gradient_accumulation_steps"


def _is_told(script: Script, backward: Backward, divisor: ast.expr) -> bool:
    """Whether the divisor is the accumulation that the engine was given."""
    text = written(divisor)
    if backward.by == "DeepSpeedEngine":
        if text.endswith(("gradient_accumulation_steps()", "gradient_accumulation_steps")):
            return True
        told_engine = script.tree.each(_told_to_engine)
        named = _STEPS.search(dotted(divisor).rpartition(".")[2]) is not None
        return named and (not told_engine or any(constant(value) != 1 for value in told_engine))
    told = script.accumulation
    if told is not None and written(told) in (text, *_meant(script, divisor)):
        return True
    return _divides(script) and text.endswith("accelerator.gradient_accumulation_steps")
