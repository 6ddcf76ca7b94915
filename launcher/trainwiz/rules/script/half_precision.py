"""Loss scaling, where 16-bit numbers need it and where they do not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.tree import constant, dotted, walk

_AUTOCAST = ("torch.amp.autocast", "torch.autocast", "torch.amp.autocast_mode.autocast")
_SCALES = re.compile(r"\.scale\(|scale_loss|loss_?scal|scaler\(")
"""In a program that scales its loss."""
_HALF = ("torch.float16", "torch.half")
_ASKS = re.compile(r"float16|half|fp16|dtype|amp|precision", re.IGNORECASE)


@rule("TW789", level=Level.WARNING, field="script")
def half_precision_scales_the_loss(script: Script) -> Violations:
    """Under fp16 autocast, scale the loss with a GradScaler.

    Without it: gradients below 6e-8 become 0 in fp16: small weights stop learning, and nothing says so.
    Why: autocast on CUDA computes in float16 unless it is told otherwise, and so does its backward pass; the loss must
    be multiplied before, and the gradients divided after it.
    Instead: use scaler = torch.amp.GradScaler(), scaler.scale(loss).backward(), scaler.step(optimizer) and
    scaler.update(); or dtype=torch.bfloat16, which needs none.
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """
    if not script.training.steps:
        return
    halves = [c for c in _autocasts(script) if _is_half(script, c) and not script.tree.without_gradient(c.node)]
    for call in halves if halves and not script.says(_SCALES) else ():
        block = _block(script, call.node)
        made = (
            {dotted(n) for n in walk(block) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            if block
            else ()
        )
        for backward in script.training.backwards:
            here = script.tree.scope(backward.call) is script.tree.scope(call.node)
            if here and backward.by == "Tensor" and any(dotted(n) in made for n in walk(backward.loss)):
                yield violation(
                    "autocast computes in float16, but nothing scales the loss: small gradients become 0",
                    remedy("use a GradScaler, or autocast with dtype=torch.bfloat16"),
                    place=script.place(call.node),
                )
                return


@rule("TW790", level=Level.HINT, field="script")
def scalers_are_for_half_precision(script: Script) -> Violations:
    """Enable a GradScaler for float16 only, not for bfloat16.

    Without it: bfloat16 needs no scale; the scaler still skips updates whose scaled gradients overflow, and reads a
    flag from the device at each of them.
    Why: bfloat16 has the exponents of float32, so that small gradients do not become 0.
    Instead: use torch.amp.GradScaler(enabled=dtype == torch.float16).
    Source: https://docs.pytorch.org/docs/stable/amp.html (gradient scaling)
    """
    scalers = [c for c in script.makers("GradScaler") if c.keyword("enabled") in (None,) or _is_on(c)]
    if not scalers or not script.training.backwards:
        return
    may = any(_mentions(script, c, "bfloat16") for c in _autocasts(script))
    for call in scalers if may else ():
        asked = any(_ASKS.search(ast.unparse(g.test)) for g in script.tree.guards(call.node))
        if not asked and not call.node.args and not call.has_spread() and not _is_chosen(script, call.node):
            yield violation(
                "the loss is scaled under bfloat16 too, which needs no scale",
                remedy("add enabled=dtype == torch.float16"),
                place=script.place(call.node),
            )


def _is_on(call: Call) -> bool:
    return constant(call.keyword("enabled")) is True


def _is_chosen(script: Script, call: ast.Call) -> bool:
    """Whether a condition chooses the scaler in the expression that it is a part of."""
    return isinstance(script.tree.parent(call), ast.IfExp | ast.BoolOp)


def _autocasts(script: Script) -> Iterator[Call]:
    """The calls of autocast that are switched on."""
    for call in script.called(*_AUTOCAST):
        enabled = call.keyword("enabled")
        if enabled is None or constant(enabled) is True:
            yield call


def _is_half(script: Script, call: Call) -> bool:
    """Whether autocast surely computes in float16."""
    kind = call.keyword("dtype") or next(iter(call.node.args[1:2]), None)
    if kind is not None:
        return script.names.resolved(kind) in _HALF
    first = call.argument("device_type", 0)
    if "cuda.amp" in dotted(call.node.func) or _is_of_cuda(call):
        return first is None
    return bool(constant(first) == "cuda")


def _is_of_cuda(call: Call) -> bool:
    """Whether autocast is imported from torch.cuda.amp, whose device is not told."""
    return "device_type" not in {k.arg for k in call.node.keywords} and not call.node.args


def _mentions(script: Script, call: Call, name: str) -> bool:
    kind = call.keyword("dtype")
    return kind is not None and any(
        dotted(n).rpartition(".")[2] == name for n in script.names.feeding(kind) if isinstance(n, ast.Attribute)
    )


def _block(script: Script, call: ast.Call) -> ast.With | None:
    item = script.tree.parent(call)
    above = script.tree.parent(item) if isinstance(item, ast.withitem) else None
    return above if isinstance(above, ast.With) else None
