"""Windows of micro-batches: where the update falls, what is left over, what the loss is divided by."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.training import Backward, Window
from trainwiz.script.tree import dotted

_OWN_DIVISION = ("Accelerator", "DeepSpeedEngine")
_MAKERS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")


@rule("TW720", level=Level.ERROR, field="script")
def updates_follow_whole_windows(script: Script) -> Iterator[Violation]:
    """Update after every n micro-batches: (i + 1) % n == 0 if the counter starts at 0.

    Without it: with `i % n == 0`, the first update sees only 1 micro-batch while the loss is divided by n, and each
    later update mixes the rest of one window with the start of the next.
    Why: i is 0 in the first iteration, and 0 % n is 0.
    Instead: write `if (i + 1) % n == 0`, or use enumerate(loader, 1); or use accelerate's accumulate().
    Source: seen with 13 batches and n = 4; accelerate's complete_nlp_example.py has it
    """
    for window in script.training.windows:
        if window.early and not _is_less_one(window.size):
            size = ast.unparse(window.size)
            known = window.size.value if isinstance(window.size, ast.Constant) else None
            if isinstance(known, int) and window.early % known == 0:
                continue
            late = -window.early
            message = (
                say("micro-batches before the first update: {late}; a full window has {size}", late=late, size=size)
                if late > 0
                else say(
                    "micro-batches missing at the first update: {early}; a full window has {size}",
                    early=-late,
                    size=size,
                )
            )
            yield Violation(
                message,
                remedy("use if (i + 1) % {size} == 0, with a counter that starts at 0", size=size),
                place=script.place(window.test),
            )


@rule("TW721", level=Level.ERROR, field="script")
def windows_are_not_one_short(script: Script) -> Iterator[Violation]:
    """Take the counter modulo n, not modulo n - 1.

    Without it: with n = 4 and 13 batches, the updates see 1, 3, 3, 3 and 3 micro-batches while the loss is divided
    by 4; n = 2 updates on every batch; n = 1 divides by zero.
    Why: the condition comes from Colossal-AI's gradient accumulation tutorial, and is often copied from there.
    Instead: write `if (i + 1) % n == 0`.
    Source: https://colossalai.org/docs/features/gradient_accumulation_with_booster/; seen by running it
    """
    for window in script.training.windows:
        if _is_less_one(window.size):
            size = ast.unparse(window.size.left)  # type: ignore[attr-defined]
            yield violation(
                "updates happen every {size} - 1 micro-batches, but the loss is divided by {size}",
                remedy("use if (i + 1) % {size} == 0, with a counter that starts at 0", size=size),
                size=size,
                place=script.place(window.test),
            )


@rule("TW722", level=Level.WARNING, field="script")
def the_last_window_counts(script: Script) -> Iterator[Violation]:
    """Update after the leftover micro-batches at the end of an epoch too, or drop them on purpose.

    Without it: their gradients stay in .grad and are added to the first update of the next epoch, although they
    come from older weights; at the end of the training they are lost.
    Why: len(loader) is rarely a multiple of n, and zero_grad is called only after an update.
    Instead: write `if (i + 1) % n == 0 or i + 1 == len(loader)`; accelerate's accumulate() does this automatically.
    Source: accelerate's complete_nlp_example.py has it;
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
    """
    for window in script.training.windows:
        if not window.tail:
            yield violation(
                "micro-batches left over after the last full window of {size} in an epoch carry over into the next "
                "epoch",
                remedy("also update when i + 1 == len(loader)"),
                size=ast.unparse(window.size),
                place=script.place(window.test),
            )


@rule("TW723", level=Level.ERROR, field="script")
def accumulated_losses_are_divided(script: Script) -> Iterator[Violation]:
    """If you accumulate over n micro-batches by hand, divide the loss by n.

    Without it: the gradient is n times that of the real batch; with SGD, the learning rate is n times too high, and
    clipping at 1.0 cuts n times more.
    Why: gradients add up in .grad.
    Instead: write `loss = loss / n` before backward.
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html (gradient accumulation)
    """
    for window in script.training.windows:
        if window.backward.by in ("DeepSpeedEngine", "Booster") or _is_less_one(window.size):
            continue
        if _accelerator_size(script) is None and not _is_scaled(script, window):
            yield violation(
                "the gradients of {size} micro-batches are added up, but the loss is not divided",
                remedy("divide the loss by {size} before calling backward", size=ast.unparse(window.size)),
                size=ast.unparse(window.size),
                place=script.place(window.backward.call),
            )


@rule("TW724", level=Level.ERROR, field="script")
def losses_are_divided_once(script: Script) -> Iterator[Violation]:
    """Do not divide the loss by the accumulation if accelerator.backward or engine.backward already does.

    Without it: the gradient is n times too small; its ratio to weight decay and clipping is no longer the intended
    one.
    Why: both accelerator.backward and DeepSpeed's engine.backward divide the loss by the accumulation they were
    given; a script written for plain torch divides it again.
    Instead: pass the undivided loss; or leave gradient_accumulation_steps out and count by hand.
    Source: accelerate 1.15, Accelerator.backward; https://deepspeed.readthedocs.io/en/latest/training.html
    """
    for backward in script.training.backwards:
        if backward.by not in _OWN_DIVISION:
            continue
        scaled = next((k.value for k in backward.call.keywords if k.arg == "scale_wrt_gas"), None)
        if isinstance(scaled, ast.Constant) and scaled.value is False:
            continue
        division = next((n for n in _divisions(script, backward) if _is_told(script, backward, n.right)), None)
        if division is not None and not _is_multiplied(script, backward):
            name = dotted(backward.call.func)
            yield violation(
                "{name} already divides by the accumulation, and this line divides again",
                remedy("remove the division"),
                name=name,
                place=script.place(division),
            )


def _is_less_one(size: ast.expr) -> bool:
    return (
        isinstance(size, ast.BinOp)
        and isinstance(size.op, ast.Sub)
        and isinstance(size.right, ast.Constant)
        and size.right.value == 1
    )


def _is_scaled(script: Script, window: Window) -> bool:
    """Whether the loss is brought to scale somewhere: divided, multiplied, or made by a call that was told the size."""
    size = ast.unparse(window.size)
    for node in script.names.feeding(window.backward.loss):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
            return True
        if isinstance(node, ast.Call):
            given = [ast.unparse(value) for value in [*node.args, *[k.value for k in node.keywords]]]
            if size in given:
                return True
            function = script.names.function(dotted(node.func).rpartition(".")[2])
            if function and any(isinstance(n, ast.Div) for n in ast.walk(function)):
                return True
    return _scales_gradients(script, window)


def _scales_gradients(script: Script, window: Window) -> bool:
    """Whether gradients or the rate are divided instead of the loss."""
    for node in ast.walk(script.tree.scope(window.step)):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div | ast.Mult):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("div_", "mul_"):
            return True
    return False


def _accelerator_size(script: Script) -> ast.expr | None:
    """What the Accelerator was told to accumulate; it then divides by that."""
    for call in script.called(*_MAKERS):
        value = call.keyword("gradient_accumulation_steps") or call.keyword("gradient_accumulation_plugin")
        if value is None and call.has_spread():
            return call.node
        if value is not None and not (isinstance(value, ast.Constant) and value.value == 1):
            return value
    return None


def _divisions(script: Script, backward: Backward) -> Iterator[ast.BinOp]:
    for node in script.names.feeding(backward.loss):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield node


def _is_told(script: Script, backward: Backward, divisor: ast.expr) -> bool:
    """Whether the divisor is the accumulation that the engine knows."""
    text = ast.unparse(divisor)
    if backward.by == "DeepSpeedEngine":
        return text.endswith(("gradient_accumulation_steps()", "gradient_accumulation_steps"))
    told = _accelerator_size(script)
    if told is None:
        return False
    return text == ast.unparse(told) or text.endswith("accelerator.gradient_accumulation_steps")


def _is_multiplied(script: Script, backward: Backward) -> bool:
    """Whether the loss is multiplied too: then a count decides, not the accumulation."""
    nodes = script.names.feeding(backward.loss)
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) for n in nodes)
