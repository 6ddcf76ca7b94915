"""Where a resumed training goes on: the epoch after the last, and the count of steps so far."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.names import parameters
from trainwiz.script.origins import argument
from trainwiz.script.outline import Outline
from trainwiz.script.tree import constant, dotted, method, walk, written

_EPOCH = re.compile(r"^(cur(rent)?_|last_)?epochs?$", re.IGNORECASE)
"""The keys of a checkpoint under which the epoch stands."""
_BEGINNING = re.compile(r"(start|first|resume|initial|begin)\w*epoch|epoch_?(start|begin)", re.IGNORECASE)
_COUNTERS = re.compile(
    r"^((global|total|completed|update|opt|train|cur(rent)?)_?)?(steps?|iters?|iterations?|updates?)"
    r"(_?(num|count|so_far|done))?$"
)
_FILES = re.compile(r"save|ckpt|checkpoint|state", re.IGNORECASE)
_DEEP = 3
"""Functions through which the epoch is handed on."""


@rule("TW793", level=Level.WARNING, field="script")
def resuming_goes_on_where_it_ended(script: Script) -> Violations:
    """Continue a resumed training at the epoch after the last finished one, and at the same count of steps.

    Without it: the last epoch is trained twice, with the same order of samples; a step that counts from 0 again gives
    the wrong learning rate, ends the training too late, and overwrites older checkpoints.
    Why: what is saved at the end of epoch 3 says 3, and epoch 3 is finished then; nothing restores a plain number.
    Instead: start_epoch = checkpoint["epoch"] + 1; save the step beside it, and load it again.
    Source: https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html (general checkpoint); DeiT's main.py
    """
    yield from _repeated_epochs(script)
    yield from _counted_anew(script)


def _repeated_epochs(script: Script) -> Violations:
    """Trainings that begin at the epoch that a checkpoint says, where that was written at its end."""
    for name, key, node in script.tree.each(_loaded_epochs):
        last = name.rpartition(".")[2]
        changes = [n for n in script.tree.of(ast.AugAssign) if dotted(n.target).rpartition(".")[2] == last]
        loop = _counting_from(script, last) if not changes else None
        if loop is None:
            continue
        values = [v for k, v in script.tree.each(_saved_epochs) if k == key]
        ends = [end for value in values for end in _ends(script, value, _DEEP)]
        finished = [end for end in ends if _is_finished(script, end, loop)]
        if finished and all(end in finished or not _counts_on(script, end, loop) for end in ends):
            yield violation(
                "{epoch} is saved at the end of the epoch: without + 1, this epoch is trained again",
                remedy("add 1: {name} = … + 1", name=name),
                epoch=written(finished[0]),
                place=script.place(node),
            )


def _loaded_epochs(outline: Outline) -> list[tuple[str, str, ast.AST]]:
    """Names that get the epoch of a checkpoint as it is, with its key: `start_epoch = checkpoint["epoch"]`."""
    found = []
    for node in outline.of(ast.Assign):
        value = node.value
        if isinstance(value, ast.Call) and dotted(value.func) == "int" and len(value.args) == 1:
            value = value.args[0]
        key = value.slice if isinstance(value, ast.Subscript) else None
        if isinstance(value, ast.Call) and method(value) in ("get", "pop") and value.args:
            key = value.args[0]
        text = constant(key)
        if isinstance(text, str) and _EPOCH.search(text):
            found += [(dotted(target), text, node) for target in node.targets if dotted(target)]
    return found


def _saved_epochs(outline: Outline) -> list[tuple[str, ast.expr]]:
    """What is stored under the keys of epochs, beside states."""
    groups = [[(constant(k), v) for k, v in zip(n.keys, n.values, strict=True)] for n in outline.of(ast.Dict)]
    groups += [[(k.arg, k.value) for k in call.keywords] for call in outline.calls.get("dict", ())]
    found = [pair for group in groups if any(map(_is_state, group)) for pair in group]
    stored = [n for n in outline.of(ast.Assign) if isinstance(n.targets[0], ast.Subscript)]
    files = [n for n in stored if _FILES.search(dotted(n.targets[0].value))]
    found += [(constant(n.targets[0].slice), n.value) for n in files]
    return [(key, value) for key, value in found if isinstance(key, str) and _EPOCH.search(key)]


def _is_state(pair: tuple[object, ast.expr]) -> bool:
    """Whether an entry of a dictionary is the state of something that is trained."""
    key, value = pair
    return method(value) == "state_dict" or (isinstance(key, str) and re.search("model|state|optim", key) is not None)


def _counting_from(script: Script, last: str) -> ast.For | None:
    """The only loop over the epochs of a training that begins at a name: `for epoch in range(start, …)`."""
    found = []
    for loop in script.tree.of(ast.For):
        ranged = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func).rpartition(".")[2] in ("range", "trange")
        begins = loop.iter.args[0] if ranged and len(loop.iter.args) > 1 else None  # type: ignore[attr-defined]
        if begins is not None and dotted(begins).rpartition(".")[2] == last and _trains(script, loop):
            found.append(loop)
    return found[0] if len(found) == 1 else None


def _trains(script: Script, loop: ast.For) -> bool:
    """Whether a loop leads to a backward pass, or to what is called a training of an epoch."""
    return bool(script.training.within(loop)) or bool(script.training.backwards and _training(loop))


def _training(loop: ast.For) -> list[ast.Call]:
    """The calls in a loop of what trains by its name, of an object that is not known: `runner.train_epoch(…)`."""
    calls = [n for n in walk(loop) if isinstance(n, ast.Call)]
    return [n for n in calls if re.search(r"^_?(train|fit)_?(one_)?(epoch|step|loop)", method(n))]


def _ends(script: Script, value: ast.expr, depth: int) -> Iterator[ast.expr]:
    """A value where it comes from: through the parameters of functions."""
    function = script.tree.scope(value)
    if isinstance(value, ast.Name) and value.id in parameters(function) and depth:
        given = [argument(function, value.id, site) for site in script.origins.sites(function)]
        for one in given:
            if one is not None:
                yield from _ends(script, one, depth - 1)
    else:
        yield value


def _is_finished(script: Script, value: ast.expr, loop: ast.For) -> bool:
    """Whether a value is the number of a loop's turn, after the training of that turn."""
    if not isinstance(value, ast.Name) or value.id != dotted(loop.target):
        return False
    if script.tree.loops(value)[:1] != [loop]:
        return False
    statement = _statement_in(script, value, loop)
    trained = [s for b in script.training.within(loop) if (s := _leading(script, b.call, loop, _DEEP)) is not None]
    trained = trained or [s for n in _training(loop) if (s := _statement_in(script, n, loop)) is not None]
    return statement is not None and bool(trained) and all(script.tree.is_before(s, statement) for s in trained)


def _counts_on(script: Script, value: ast.expr, loop: ast.For) -> bool:
    """Whether a value says that another epoch comes, or is written in the middle of one."""
    computed = isinstance(value, ast.BinOp)
    return computed or (isinstance(value, ast.Name) and loop in script.origins.loops(value))


def _statement_in(script: Script, node: ast.AST, loop: ast.For) -> ast.stmt | None:
    around = [node, *script.tree.above(node)]
    return next((a for a in around if isinstance(a, ast.stmt) and a in loop.body), None)


def _leading(script: Script, node: ast.AST, loop: ast.For, depth: int) -> ast.stmt | None:
    """The statement of a loop that leads to a node, itself or by the functions that it calls."""
    here = _statement_in(script, node, loop)
    if here is not None or not depth:
        return here
    sites = script.origins.sites(script.tree.scope(node))
    return next((s for site in sites if (s := _leading(script, site, loop, depth - 1)) is not None), None)


def _counted_anew(script: Script) -> Violations:
    """Counters of steps that begin at 0 in a training that begins at a later epoch."""
    resumed = [one for one in script.tree.each(_later_epochs) if _is_from_checkpoint(script, one)]
    if not resumed:
        return
    for change in script.tree.of(ast.AugAssign):
        name = dotted(change.target)
        loops = script.tree.loops(change)
        if not _COUNTERS.search(name.rpartition(".")[2]) or not isinstance(change.op, ast.Add):
            continue
        made = [a for a in script.names.assigned(name, change) if a.node is not change]
        anew = made and all(constant(a.value) == 0 and not script.tree.loops(a.node) for a in made)
        here = [n for n in resumed if script.tree.scope(n) is script.tree.scope(change)]
        learns = any(script.training.within(loop) for loop in loops)
        if anew and here and learns and _matters(script, name, loops[-1]):
            yield violation(
                "{name} counts from 0 again, though the training goes on at a later epoch",
                remedy("restore it with the epoch, from the checkpoint"),
                name=name,
                place=script.place(here[0]),
            )
            return


def _later_epochs(outline: Outline) -> list[ast.AST]:
    """Assignments of more than a number to the epoch that a training begins with."""
    if not any(_BEGINNING.search(name.rpartition(".")[2]) for name in outline.bindings):
        return []
    found = []
    for name, bindings in outline.bindings.items():
        if _BEGINNING.search(name.rpartition(".")[2]):
            found += [b.node for b in bindings if isinstance(b.value, ast.expr) and constant(b.value) is None]
    return [node for node in found if isinstance(node, ast.Assign)]


def _is_from_checkpoint(script: Script, node: ast.AST) -> bool:
    """Whether the epoch comes from a file or a folder that something was loaded from."""
    assert isinstance(node, ast.Assign)
    tests = " ".join(written(guard.test) for guard in script.tree.guards(node))
    fed = [n for n in script.names.feeding(node.value) if isinstance(n, ast.Name | ast.Attribute | ast.Call)]
    names = " ".join(dotted(n.func if isinstance(n, ast.Call) else n) for n in fed)
    asked = re.search(r"resume|checkpoint|ckpt|restore", tests, re.IGNORECASE)
    return bool(asked and re.search(r"split|load|checkpoint|ckpt|state|path|resume", names, re.IGNORECASE))


def _matters(script: Script, name: str, loop: ast.AST) -> bool:
    """Whether a counter ends a loop, or names what is saved."""
    for node in (n for n in walk(loop) if dotted(n) == name):
        for above in script.tree.inside(node):
            ends = isinstance(above, ast.Compare) and isinstance(above.ops[0], ast.Gt | ast.GtE)
            if ends and dotted(above.left) == name:  # type: ignore[attr-defined]
                return True
            if isinstance(above, ast.Call) and _FILES.search(dotted(above.func)):
                return True
            if isinstance(above, ast.stmt):
                if isinstance(above, ast.Assign) and _FILES.search(" ".join(map(written, above.targets))):
                    return True
                break
    return False
