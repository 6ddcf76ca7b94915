"""What makes the host wait for the device in every micro-batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.tree import Function, Guard, Loop, dotted, method, opened, walk, written

_READS = ("item", "tolist", "cpu", "numpy")


@rule("TW740", level=Level.HINT, field="script")
def the_loss_stays_on_the_device(script: Script) -> Violations:
    """Read the loss from the device at log points, not in every micro-batch.

    Without it: each time, the host waits for the device, and then the device waits for the host: a loop that logged
    loss and weight norm in every micro-batch had 240 waits per update, a clean one 8.
    Why: .item(), float() and .cpu() return only when all queued work is done.
    Instead: add up loss.detach() on the device, and read the sum every 10 updates.
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (avoid unnecessary CPU-GPU sync)
    """
    yield from _read_in_functions(script)
    for call, loop in _every_turn(script, *_READS, "float"):
        names = _loss_names(script, loop)
        function = call.func
        if isinstance(function, ast.Attribute) and method(function) in _READS and not call.args:
            read: ast.AST = function.value
        elif dotted(function) == "float" and call.args:
            read = call.args[0]
        else:
            continue
        if any(isinstance(n, ast.Name) and n.id in names for n in walk(read)):
            yield violation(
                "{call} makes the host wait for the device at every micro-batch",
                remedy("accumulate the detached loss on the device, and read it when logging"),
                call=written(call),
                place=script.place(call),
            )


def _read_in_functions(script: Script) -> Violations:
    """The same in a function that makes the backward pass of each micro-batch, and in a LightningModule's step."""
    for call in script.methods("item"):
        function, owner = script.tree.scope(call.node), call.node.func.value  # type: ignore[attr-defined]
        if not isinstance(function, Function) or script.tree.loops(call.node) or script.tree.guards(call.node):
            continue
        passes = [b for b in script.training.backwards if script.tree.scope(b.call) is function and b.loop is None]
        turns = any(script.origins.loops(b.call) for b in passes)
        lost = {n.id for b in passes if turns for n in walk(b.loss) if isinstance(n, ast.Name)}
        if function.name == "training_step" and script.engines.lightning:
            lost |= {dotted(value) for value in script.origins.returned(function)}
        if dotted(owner) in lost - {""}:
            yield violation(
                "{call} makes the host wait for the device at every micro-batch",
                remedy("accumulate the detached loss on the device, and read it when logging"),
                call=ast.unparse(call.node),
                place=script.place(call.node),
            )


@rule("TW741", level=Level.HINT, field="script")
def lines_are_printed_at_log_points(script: Script) -> Violations:
    """Print only at log points, and only from one process.

    Without it: N processes print the same line for every micro-batch; a terminal or a network file system slows
    down the training, and the important line is lost.
    Why: printing the loss also waits for the device.
    Instead: print under `if step % 10 == 0`, with accelerator.print or on rank 0.
    Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
    """
    if not script.engines.distributed:
        return
    for call, _ in _every_turn(script, "print"):
        if dotted(call.func) == "print" and not script.ranks.is_single(call):
            fix = remedy("print every N updates, on the main process")
            yield violation("every process prints at every micro-batch", fix, place=script.place(call))


@rule("TW742", level=Level.WARNING, field="script")
def norms_are_measured_at_log_points(script: Script) -> Violations:
    """Measure norms of weights and gradients at log points, not in every micro-batch.

    Without it: each measurement reads all parameters and waits for the device once per tensor.
    Why: within a window, the gradient is a partial sum, so its norm is meaningless; the weights have not changed.
    Instead: use the norm that clip_grad_norm_ returns, once per update; measure weights every 10 to 100 updates.
    Source: counted: 240 waits per update at accumulation 8, against 8 in a clean loop
    """
    windows = {w.loop for w in script.training.windows}
    seen: set[ast.AST] = set()
    for call, loop in _every_turn(script, "norm", comprehensions=True):
        if method(call) != "norm":
            continue
        accumulates = loop in windows or any(isinstance(w, ast.With) and opened(w, "accumulate") for w in walk(loop))
        over = _over_parameters(script, call, loop)
        if accumulates and over is not None and over not in seen:
            seen.add(over)
            yield violation(
                "the norms of all parameters are computed at every micro-batch",
                remedy("compute them at most once per update, when logging"),
                place=script.place(call),
            )


def _every_turn(script: Script, *names: str, comprehensions: bool = False) -> Iterator[tuple[ast.Call, Loop]]:
    """The calls of these names that every turn of a training loop makes, under no condition but one on the rank."""
    loops = set(script.training.turns)
    for call in script.calls_of(*names) if loops else ():
        around = script.tree.loops(call.node)
        loop = next((one for one in around if one in loops), None)
        if loop is None or (around[0] is not loop and not comprehensions):
            continue
        guards = script.tree.guards(call.node, within=loop)
        if all(_is_of_rank(script, guard) for guard in guards) and not _is_in_head(call.node, loop):
            yield call.node, loop


def _is_of_rank(script: Script, guard: Guard) -> bool:
    """Whether the condition depends only on the rank; the other ranks then wait for those where it is true."""
    several = any(isinstance(node, ast.BoolOp) for node in walk(guard.test))
    return not several and script.ranks.differs(guard.test, guard.positive)


def _is_in_head(node: ast.AST, loop: Loop) -> bool:
    """Whether the node is part of what the loop iterates over."""
    return isinstance(loop, ast.For | ast.AsyncFor) and node in walk(loop.iter)


def _loss_names(script: Script, loop: Loop) -> set[str]:
    """The names of the losses that are differentiated in the loop."""
    found = set()
    for backward in script.training.within(loop):
        if backward.loop is loop:
            found |= {n.id for n in walk(backward.loss) if isinstance(n, ast.Name)}
        else:
            function = script.tree.scope(backward.call)
            made = [n for n in walk(loop) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
            given = [n for n in made if script.origins.called(n.value) is function]  # type: ignore[arg-type]
            found |= {t.id for n in given for t in n.targets if isinstance(t, ast.Name)}
    return found


def _over_parameters(script: Script, call: ast.Call, loop: Loop) -> ast.AST | None:
    """The loop or comprehension over a model's parameters that contains a call."""
    for ancestor in script.tree.inside(call):
        if ancestor is loop:
            return None
        sources: list[ast.expr] = []
        if isinstance(ancestor, ast.For):
            sources = [ancestor.iter]
        elif isinstance(ancestor, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
            sources = [g.iter for g in ancestor.generators]
        for source in sources:
            if isinstance(source, ast.Call) and dotted(source.func).endswith(("parameters", "named_parameters")):
                return ancestor
    return None
