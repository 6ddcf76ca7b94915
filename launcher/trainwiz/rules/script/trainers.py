"""Methods that Lightning and the Trainer call: what they do themselves must not be done a second time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.tree import Function, constant, dotted, method, operates, walk, written

_TRAINERS = ("transformers.", "trl.")
_ACCUMULATION = ("gradient_accumulation_steps", "current_gradient_accumulation_steps")


@rule("TW719", level=Level.ERROR, field="script")
def steps_are_left_to_the_trainer(script: Script) -> Violations:
    """In training_step and compute_loss, return the loss; leave backward, step and zero_grad to the trainer.

    Without it: the backward pass runs twice (`Trying to backward through the graph a second time`), or bypasses the
    loss scale and DeepSpeed; a loss that is divided by the accumulation is divided twice.
    Why: Lightning's automatic optimization and transformers' Trainer do all of this after the method returns.
    Instead: return the loss. In Lightning, set self.automatic_optimization = False to do it by hand; in a Trainer's
    training_step, call self.accelerator.backward(loss).
    Source: https://lightning.ai/docs/pytorch/stable/common/optimization.html; transformers 5, Trainer.training_step
    """
    for owner, function in _methods(script):
        if owner == "Lightning" and function.name == "training_step":
            yield from _lightning(script, function)
        elif owner == "Trainer" and function.name in ("compute_loss", "training_step"):
            yield from _trainer(script, function)


@rule("TW739", level=Level.ERROR, field="script")
def compute_loss_takes_the_number_of_items(script: Script) -> Violations:
    """A Trainer's compute_loss must accept num_items_in_batch.

    Without it: transformers 4.46 and newer stop at the first batch: `compute_loss() got an unexpected keyword argument
    'num_items_in_batch'`.
    Why: the Trainer passes the number of tokens of the whole update, so that accumulation weighs tokens equally.
    Instead: def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None).
    Source: seen with transformers 5; huggingface/transformers pull request 34198
    """
    for owner, function in _methods(script):
        if owner != "Trainer" or function.name != "compute_loss" or function.args.kwarg or function.args.vararg:
            continue
        names = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        if "num_items_in_batch" not in names:
            yield violation(
                "compute_loss does not accept num_items_in_batch, which transformers 4.46 and newer pass",
                remedy("add the parameter num_items_in_batch=None"),
                place=script.place(function),
            )


def _methods(script: Script) -> Iterator[tuple[str, Function]]:
    """The methods of classes that a trainer calls, with whose they are."""
    for node in script.tree.of(ast.ClassDef):
        bases = list(_bases(script, node))
        lightning = any(base.rpartition(".")[2] == "LightningModule" for base in bases)
        trainer = any(base.startswith(_TRAINERS) and base.endswith("Trainer") for base in bases)
        owner = "Lightning" if lightning else "Trainer" if trainer else ""
        if owner:
            yield from ((owner, part) for part in node.body if isinstance(part, Function))


def _bases(script: Script, kind: ast.ClassDef, depth: int = 4) -> Iterator[str]:
    """The full names of what a class is derived from, also by way of classes of the project."""
    for base in kind.bases:
        name = script.names.resolved(base)
        yield name
        own = script.origins.kind(name)
        if own is not None and own is not kind and depth:
            yield from _bases(script, own, depth - 1)


def _numbers(script: Script, function: Function) -> Violations:
    """A loss that is returned as a number, without what the backward pass goes through."""
    for node in (n for n in walk(function) if isinstance(n, ast.Return) and script.tree.scope(n) is function):
        if node.value is not None and method(node.value) in ("item", "detach") and isinstance(node.value, ast.Call):
            yield violation(
                "{function} returns {value}, which has no gradients",
                remedy("return the loss itself"),
                function=function.name,
                value=written(node.value),
                place=script.place(node),
            )


def _lightning(script: Script, function: Function) -> Violations:
    if _is_manual(script):
        return
    for call in [*_calls(function), *_helped(script, function)]:
        name = method(call)
        optimizers = name in ("step", "zero_grad") and _is_optimizer(script, call)
        if (name == "backward" and not call.args) or name == "manual_backward" or optimizers:
            yield violation(
                "{call} in training_step: Lightning does this itself",
                remedy("return the loss, or set self.automatic_optimization = False"),
                call=written(call),
                place=script.place(call),
            )
            return
    yield from _numbers(script, function)
    returns = [n for n in walk(function) if isinstance(n, ast.Return) and n.value is not None]
    if not returns and not any(isinstance(n, ast.Raise | ast.Yield) for n in walk(function)) and _does(function):
        yield violation(
            "training_step returns no loss, so Lightning trains nothing",
            remedy("return the loss"),
            place=script.place(function),
        )


def _trainer(script: Script, function: Function) -> Violations:
    own = [call for call in _calls(function) if dotted(call.func).endswith("accelerator.backward")]
    for call in _calls(function):
        # A copy of an older Trainer's own training_step has a branch for each way.
        copied = any(script.tree.exclusive(call, other) for other in own)
        if method(call) == "backward" and not call.args and not copied:
            yield violation(
                "{call} in {function} bypasses the Trainer's own backward pass",
                remedy("return the loss; in training_step, call self.accelerator.backward(loss)"),
                call=written(call),
                function=function.name,
                place=script.place(call),
            )
            return
    yield from _numbers(script, function) if function.name == "compute_loss" else ()
    kind = script.tree.parent(function)
    direct = isinstance(kind, ast.ClassDef) and any(script.names.resolved(b).startswith(_TRAINERS) for b in kind.bases)
    for node in walk(function) if function.name == "compute_loss" and direct else ():
        if operates(node, ast.Div) and dotted(node.right).endswith(_ACCUMULATION):  # type: ignore[attr-defined]
            yield violation(
                "the Trainer divides by the accumulation, and this line divides again",
                remedy("remove the division"),
                place=script.place(node),
            )


def _helped(script: Script, function: Function) -> Iterator[ast.Call]:
    """The calls in the methods that a step calls and returns the loss of: `return self._step(batch)`."""
    returned = [n.value for n in walk(function) if isinstance(n, ast.Return) and isinstance(n.value, ast.Call)]
    for call in returned:
        helper = script.origins.called(call) if dotted(call.func).startswith("self.") else None
        yield from _calls(helper) if helper is not None and helper is not function else ()


def _calls(function: Function) -> Iterator[ast.Call]:
    return (node for node in walk(function) if isinstance(node, ast.Call))


def _is_optimizer(script: Script, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call
    return script.engines.kind(owner) == "Optimizer"


def _is_manual(script: Script) -> bool:
    """Whether a class turns automatic optimization off, anywhere in the file."""
    if any(function.name == "automatic_optimization" for function in script.tree.functions):
        return True
    targets = (target for node in script.tree.of(ast.Assign) for target in node.targets)
    return any(dotted(target).endswith("automatic_optimization") for target in targets)


def _does(function: Function) -> bool:
    """Whether a function has a body of its own, and is not left to others."""
    return any(not isinstance(s, ast.Pass) and constant(getattr(s, "value", None)) is None for s in function.body)
