"""Counters of updates that advance with every micro-batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.training import counts_to_window
from trainwiz.script.tree import Loop, constant, dotted, leaves, opened, operates, walk, written

_MAX_UPDATES = re.compile(r"(^|\.|_)(max|total|num|n)_(train(ing)?_|optim(ization|izer)?_)?(update_)?(steps|updates)$")
_UPDATES = re.compile(
    r"(^|\.|_)(global|completed|update|optim(izer)?)_?(steps?|updates?|count|idx)$|(^|\.)(num_)?updates?$"
)
"""Names of counters that count updates."""
_INTERVALS = re.compile(r"(save|checkpoint\w*|ckpt|eval\w*|valid\w*)_?(steps|interval|every|freq|iters|n_steps|step)")
_SYNCHRONIZED = re.compile(r"sync_gradients|boundary|did_update|optimizer_step_was_skipped")


@rule("TW785", level=Level.WARNING, field="script")
def updates_are_counted_once_per_window(script: Script) -> Violations:
    """Under gradient accumulation, count updates where the optimizer steps, not in every micro-batch.

    Without it: with an accumulation of n, the training ends after 1/n of its updates, before the learning rate has
    decayed, and checkpoints and evaluations come n times as often, most of them in the middle of a window.
    Why: the loop runs once per micro-batch; the optimizer steps in every n-th iteration.
    Instead: advance the counter under the condition of the step: if accelerator.sync_gradients: global_step += 1.
    Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation; karpathy/nanochat pull request
    775, modelscope/DiffSynth-Studio pull request 1470
    """
    for loop in _accumulating(script):
        for name, node in _counters(script, loop):
            use = _use(script, name, loop)
            if use is not None:
                yield violation(
                    "{name} advances in every micro-batch, but {use} counts updates",
                    remedy("advance it where the optimizer steps, under the same condition"),
                    name=name,
                    use=written(use),
                    place=script.place(node),
                )


def _accumulating(script: Script) -> Iterator[Loop]:
    """The loops over micro-batches of which several make an update."""
    found = [w.loop for w in script.training.windows if w.backward.loop is w.loop]
    if script.accumulation is not None:
        for backward in script.training.backwards:
            blocks = [b for b in script.tree.withs(backward.call) if opened(b, "accumulate")]
            if backward.by == "Accelerator" and blocks and backward.loop is not None:
                found.append(backward.loop)
    yield from dict.fromkeys(found)


def _counters(script: Script, loop: Loop) -> Iterator[tuple[str, ast.AST]]:
    """The counters that advance by one in each turn of a loop, or that the loop counts itself."""
    for node in walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and constant(node.value) == 1:
            name = dotted(node.target)
            if name and next(iter(script.tree.loops(node)), None) is loop and not _waits(script, node, loop):
                made = [a for a in script.names.assigned(name, node) if a.node is not node]
                # One that is set back to zero in the loop is the window's own.
                if not any(loop in script.tree.loops(a.node) for a in made):
                    yield name, node


def _waits(script: Script, node: ast.AST, loop: Loop) -> bool:
    """Whether a statement waits for the end of a window."""
    windows = [w for w in script.training.windows if w.loop is loop]
    for guard in script.tree.guards(node, within=loop):
        text = written(script.training.expanded(guard.test))
        if _SYNCHRONIZED.search(text) or any(counts_to_window(w, guard, script.training.expanded) for w in windows):
            return True
        if not windows and "%" in text:
            return True
    return False


def _use(script: Script, name: str, loop: Loop) -> ast.expr | None:
    """The number of updates that a counter is held against, if it is anything but the window's own."""
    for node in walk(loop):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and _is_end(node, name):
            total = node.test.comparators[0]
            if _counts_updates(script, total):
                return total
        if isinstance(node, ast.If) and _UPDATES.search(name) and not _waits_inside(script, node, loop):
            interval = _interval(node.test, name)
            if interval is not None:
                return interval
    return None


def _waits_inside(script: Script, node: ast.If, loop: Loop) -> bool:
    """Whether a condition, or one around it, asks for the end of a window."""
    return bool(_SYNCHRONIZED.search(written(node.test))) or _waits(script, node, loop)


def _is_end(node: ast.If, name: str) -> bool:
    test = node.test
    assert isinstance(test, ast.Compare)
    over = isinstance(test.ops[0], ast.GtE | ast.Gt | ast.Eq)
    return over and len(test.ops) == 1 and dotted(test.left) == name and leaves(node.body)


def _counts_updates(script: Script, total: ast.expr) -> bool:
    """Whether a total says that it counts updates: by its name, or because the accumulation divides it."""
    made = [a.value for a in script.names.assigned(dotted(total), total)] if dotted(total) else []
    fed = [n for value in (total, *made) for n in script.names.feeding(value)]
    if any(operates(n, ast.Mult) and "accum" in dotted(n.left) + dotted(n.right) for n in fed):  # type: ignore[attr-defined]
        return False
    divided = any(operates(n, ast.Div, ast.FloorDiv) and "accum" in written(n.right) for n in fed)  # type: ignore[attr-defined]
    return divided or _MAX_UPDATES.search(dotted(total)) is not None


def _interval(test: ast.expr, name: str) -> ast.expr | None:
    """The interval of saves or evaluations of `counter % interval == 0`."""
    for node in walk(test):
        counts = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and dotted(node.left) == name
        if counts and _INTERVALS.search(written(node.right)):  # type: ignore[attr-defined]
            return node.right  # type: ignore[attr-defined,no-any-return]
    return None
