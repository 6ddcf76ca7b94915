"""The schedule of torch that a script makes: what makes it, and whether it steps after an update or an epoch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwiz.script.numbers import numbers
from trainwiz.script.slices import Gap, Slice, Slicer
from trainwiz.script.tree import Function, constant, dotted

if TYPE_CHECKING:
    from trainwiz.script import Call, Script
    from trainwiz.script.training import Backward

_OF_TORCH = "torch.optim.lr_scheduler."
_BY_METRIC = ("ReduceLROnPlateau",)
"""They ask for what an evaluation found, so no update knows its rate before."""
_CYCLES_MOMENTUM = ("OneCycleLR", "CyclicLR")
_MULTIPLY = ("StepLR", "MultiStepLR", "ExponentialLR", "LambdaLR", "ConstantLR", "LinearLR", "PolynomialLR")
"""They multiply the rate of each parameter group by the same."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule that can be made again beside another optimizer with the same rate."""

    node: ast.Call
    """What makes it."""
    taken: Slice
    """The same, with what it rests on."""
    optimizer: str
    """What it calls its optimizer."""
    loader: str
    """What it calls the loader of the training data, whose length it may ask for; empty: nothing."""
    by_epoch: bool
    """Whether it steps after each epoch; else after each update."""


def of(script: Script, loader: Call | None) -> Schedule | None:
    """The only schedule of a script; None where there is none, or where its rates are not known beforehand."""
    steps = [call for call in script.tree.calls if _is_step(script, call)]
    backward = next(iter(script.training.backwards), None)
    if len(steps) != 1 or steps[0].args or steps[0].keywords or backward is None:
        return None
    made, by_epoch = _made(script, steps[0]), _by_epoch(script, steps[0], backward)
    if made is None or by_epoch is None:
        return None
    name = dotted(made.argument("optimizer", 0) or made.node)
    if not name.isidentifier() or not (_alike_in_groups(script, made)):
        return None
    assigned = (one for group in script.names.assignments.values() for one in group)
    given = next((one.name for one in assigned if loader is not None and one.value is loader.node), "")
    try:
        taken = Slicer(script, bound={name, *([given] if given.isidentifier() else [])}).of(made.node)
    except Gap:
        return None
    return Schedule(node=made.node, taken=taken, optimizer=name, loader=given, by_epoch=by_epoch)


def _is_step(script: Script, call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and script.engines.kind(call.func.value) == "Scheduler"
    )


def _made(script: Script, step: ast.Call) -> Call | None:
    """What makes the schedule that steps. Others may be parts of it."""
    # A module that is called lr_scheduler looks like a schedule by its name.
    every = [call for call in script.calls if script.names.resolved(call.node.func).startswith(_OF_TORCH)]
    owner = dotted(step.func.value)  # type: ignore[attr-defined]
    named = [one.value for one in script.names.assignments.get(owner, ())]
    found = [call for call in every if call.node in named] or every
    if len(found) != 1 or any(call.last in _BY_METRIC for call in every):
        return None
    cycling = [call for call in every if call.last in _CYCLES_MOMENTUM]
    return None if any(constant(call.keyword("cycle_momentum")) is not False for call in cycling) else found[0]


def _alike_in_groups(script: Script, made: Call) -> bool:
    """Whether one rate says those of all parameter groups."""
    if made.last in _MULTIPLY and not isinstance(made.argument("lr_lambda", 1), ast.List):
        return True
    optimizers = [call for call in script.calls if script.engines.kind(call.node) == "Optimizer" and call.arguments]
    given = [call.argument("params", 0) for call in optimizers if call.method != "prepare"]
    return all(isinstance(one, ast.Call) and one.func and dotted(one.func).endswith(".parameters") for one in given)


def _by_epoch(script: Script, step: ast.Call, backward: Backward) -> bool | None:
    """Whether it steps after an epoch; None: this is not clear, or neither after an epoch nor after an update."""
    tree, batches = script.tree, backward.loop
    loops = tree.loops(step)
    if batches is not None and batches in loops:
        return False if _with_updates(script, step, backward) else None
    if tree.guards(step, within=loops[0] if loops else None):
        return None
    trains = batches or backward.call
    if tree.scope(step) is tree.scope(trains):
        after = tree.is_before(trains, step)
        in_epochs = loops[:1] == tree.loops(trains)[:1]
        return True if after and in_epochs and (loops or isinstance(tree.scope(step), Function)) else None
    function = tree.scope(trains)
    if not loops or not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    called = tree.calls_to(function)
    beside = len(called) == 1 and tree.loops(called[0])[:1] == loops[:1]
    return True if beside and tree.is_before(called[0], step) else None


def _with_updates(script: Script, step: ast.Call, backward: Backward) -> bool:
    """Whether it steps exactly where the optimizer does."""
    within = backward.loop
    guards = {ast.unparse(one.test) for one in script.tree.guards(step, within=within)}
    of_updates = [
        {ast.unparse(guard.test) for guard in script.tree.guards(one, within=within)} for one in script.training.steps
    ]
    once = all(one.value == 1 for one in numbers(script) if one.kind == "accumulation")
    prepared = dotted(step.func.value) in script.engines.prepared_names  # type: ignore[attr-defined]
    return guards in of_updates and (bool(guards) or once or prepared)
