"""Turns of the training loop that one rank's data decides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.script.divergence import COLLECTIVES
from trainwiz.rules.script.samples import covers_a_share
from trainwiz.script import Script
from trainwiz.script.training import SHOWING, describe
from trainwiz.script.tree import Function, Guard, Loop, children, dotted, method, walk, written

_AGREES = ("gather", "reduce", "broadcast", "all_to_all", "any_rank", "all_ranks", "sync", "agree", "consensus")
"""Parts of the names of functions after which all ranks know the same."""
_AGREEING = re.compile("|".join(_AGREES))
_SIZES = ("shape", "size", "ndim", "numel")
_CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "perf_counter")
_COMPUTING = (
    "abs",
    "all",
    "any",
    "bool",
    "float",
    "int",
    "max",
    "min",
    "not",
    "round",
    "sum",
    "isnan",
    "isinf",
    "isfinite",
)
_LEAVING = (ast.Break, ast.Continue, ast.Return)


@rule("TW743", level=Level.WARNING, field="script")
def ranks_decide_together(script: Script) -> Violations:
    """All ranks must agree before one of them skips a batch, stops, or skips a collective because of its data.

    Without it: the rank that leaves makes one backward pass fewer; the others wait for it in the next collective until
    the timeout, or average gradients of different batches.
    Why: each rank sees different samples and its own clock, so a test on its batch, its loss or its share of the
    evaluation is true on one rank and false on another.
    Instead: decide on a value that all ranks share: accelerator.reduce or dist.all_reduce the flag first.
    Source: https://docs.pytorch.org/docs/stable/distributed.html (all processes must make the same calls);
    https://docs.pytorch.org/tutorials/advanced/generic_join.html
    """
    if not script.engines.several:
        return
    for loop in script.training.turns:
        local = _closure(script, loop, _batch_names(script, loop) | _losses(script, loop))
        yield from _leaving(script, _exits(script, loop), local)
        yield from _left_out(script, loop, local)
        yield from _stepping_alone(script, loop, local)
        yield from _alone(script, loop)
        yield from _caught(script, loop)
    for loop in _epochs(script):
        turns = [turn for turn in script.training.turns if loop in script.origins.loops(turn)]
        losses = {name for turn in turns for name in _losses(script, turn)}
        yield from _leaving(script, _exits(script, loop), _closure(script, loop, _scores(script, loop) | losses))
        yield from _alone(script, loop)
    for function in {script.tree.scope(b.call): b for b in script.training.backwards if b.loop is None}:
        if isinstance(function, Function) and script.origins.loops(function.body[0]):
            passes = [b.call for b in script.training.backwards if script.tree.scope(b.call) is function]
            names = {n.id for b in script.training.backwards for n in walk(b.loss) if isinstance(n, ast.Name)}
            local = _closure(script, function, names - {"self", "batch"})
            exits = [(t, leave) for t, leave in _returns(script, function) if leave.lineno < passes[-1].lineno]
            yield from _leaving(script, iter(exits), local)
            yield from _stepping_alone(script, function, local)


def _stepping_alone(script: Script, part: ast.AST, local: set[str]) -> Violations:
    """Updates that one rank's data decides: all ranks have the same gradients, and some make no use of them."""
    for step in script.training.steps:
        if part not in (script.tree.scope(step), *script.tree.loops(step)[:1]):
            continue
        around = set(script.tree.inside(step))
        tests = [g.test for g in script.tree.guards(step) if script.tree.parent(g.test) in around]
        tests = [test for test in tests if _is_within(test, part)]
        asked = [t for t in tests if not _asks_presence(t) and _is_local(t, local, known=True)]
        if asked:
            yield violation(
                "only this rank knows {test}: where it makes no update, the ranks go on with different weights",
                remedy("reduce the condition over all ranks first, so that all of them update or none does"),
                test=written(asked[0]),
                place=script.place(step),
            )
            return


def _asks_presence(test: ast.expr) -> bool:
    """Whether a condition asks only if there is a value, as all ranks have or have not."""
    return isinstance(test, ast.Name) or any(isinstance(n, ast.Is | ast.IsNot) for n in walk(test))


def _leaving(script: Script, exits: Iterator[tuple[ast.expr, ast.stmt]], local: set[str]) -> Violations:
    for test, leaving in exits:
        if _is_local(test, local, known=True):
            yield violation(
                "only this rank knows {test}: if it leaves here, the other ranks wait for it",
                remedy("reduce the condition over all ranks first, so that all of them leave together"),
                test=written(test),
                place=script.place(leaving),
            )


def _alone(script: Script, loop: Loop) -> Violations:
    """Exits from a loop that only some ranks take, and after which the others go on."""
    leaving = [n for n in walk(loop) if isinstance(n, ast.Break | ast.Return)]
    for node in leaving:
        around = script.tree.loops(node)
        if around[:1] != [loop] or script.tree.scope(node) is not script.tree.scope(loop):
            continue
        guards = [g for g in script.tree.guards(node, within=loop) if _is_within(g.test, loop) and not g.raised]
        mine = next(
            (g for g in guards if script.ranks.differs(g.test, g.positive) or _is_of_one(script, g, loop)), None
        )
        others = [n for n in leaving if n is not node and script.tree.exclusive(n, node)]
        if mine is not None and not others and not any(_agrees(script, g.test) for g in guards):
            yield violation(
                "only some ranks come here, under the condition {test}: if they leave, the others wait for them",
                remedy("broadcast the decision, and leave on every rank"),
                test=describe(mine),
                place=script.place(node),
            )


def _is_of_one(script: Script, guard: Guard, loop: Loop) -> bool:
    """Whether a condition is a name that some ranks alone give another value in the loop: `if stop: break`."""
    if not isinstance(guard.test, ast.Name) or not guard.positive:
        return False
    made = script.names.assigned(guard.test.id, guard.test)
    inside = [a for a in made if loop in script.tree.loops(a.node)]
    given = [c for c in script.calls_given({guard.test.id}) if loop in script.tree.loops(c.node)]
    told = [n for c in given for n in (c.node, *walk(c.node)) if isinstance(n, ast.Call) and _says_agreed(n)]
    lists = [n for n in walk(loop) if isinstance(n, ast.List) and any(dotted(e) == guard.test.id for e in walk(n))]
    alone = bool(inside) and all(script.ranks.own_guard(a.node) is not None for a in inside)
    return alone and not told and not lists and len(made) > len(inside)


def _left_out(script: Script, loop: Loop, local: set[str]) -> Violations:
    for call in script.called(*COLLECTIVES):
        if loop not in script.tree.loops(call.node):
            continue
        tests = [g.test for g in script.tree.guards(call.node, within=loop) if _is_within(g.test, loop)]
        tests = [t for t in tests if _is_local(t, local, known=True) and not _is_exit(script, t)]
        if tests:
            yield violation(
                "only this rank knows {test}, and {name} is called only if it is true",
                remedy("call it on every rank, outside the condition"),
                test=written(tests[0]),
                name=dotted(call.node.func) or call.name,
                place=script.place(call.node),
            )


def _caught(script: Script, loop: Loop) -> Violations:
    """A turn that one rank's exception ends, where the others go on into the backward pass."""
    for node in walk(loop):
        if not isinstance(node, ast.Try) or script.tree.loops(node)[:1] != [loop]:
            continue
        learns = any(b.loop is loop and node in script.tree.inside(b.call) for b in script.training.backwards)
        within = [n for handler in node.handlers if not _is_shared(handler) for n in walk(handler)]
        leaving = [n for n in within if isinstance(n, ast.Continue | ast.Break) and script.tree.loops(n)[:1] == [loop]]
        if learns and leaving:
            yield violation(
                "an exception on one rank ends this iteration only there, and the other ranks wait for it",
                remedy("let the exception end the training, or let all ranks agree to skip the batch"),
                place=script.place(leaving[0]),
            )


def _is_shared(handler: ast.ExceptHandler) -> bool:
    """Whether all ranks get this exception in the same turn, such as the end of their data."""
    names = [dotted(n).rpartition(".")[2] for n in walk(handler.type)] if handler.type is not None else []
    return any(name in ("StopIteration", "KeyboardInterrupt", "EOFError") for name in names)


def _epochs(script: Script) -> list[Loop]:
    """The loops around the loops over micro-batches."""
    around = [loop for b in script.training.backwards for loop in script.origins.loops(b.call)[1:]]
    return [loop for loop in dict.fromkeys(around) if loop not in script.training.turns]


def _scores(script: Script, loop: Loop) -> set[str]:
    """What each rank finds out by itself in an epoch, from a share of the data that it alone sees."""
    found = set()
    for node in walk(loop):
        if isinstance(node, ast.For) and node not in script.training.turns and covers_a_share(script, node):
            sums = [n for n in walk(node) if isinstance(n, ast.AugAssign)]
            found |= {n.target.id for n in sums if isinstance(n.target, ast.Name)}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function = script.origins.called(node.value)
            loops = [n for n in walk(function) if isinstance(n, ast.For)] if function is not None else []
            if any(covers_a_share(script, inner) for inner in loops if inner not in script.training.turns):
                found |= {n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name)}
    return found


def _exits(script: Script, loop: Loop) -> Iterator[tuple[ast.expr, ast.stmt]]:
    """The conditions under which a turn of this loop ends early, with the statement that ends it."""
    for node in walk(loop):
        if not isinstance(node, _LEAVING) or script.tree.scope(node) is not script.tree.scope(loop):
            continue
        around = script.tree.loops(node)
        parent = script.tree.parent(node)
        inner = around[:1] == [loop] or (isinstance(node, ast.Return) and loop in around)
        if inner and isinstance(parent, ast.If) and node in parent.body:
            yield parent.test, node


def _returns(script: Script, function: Function) -> Iterator[tuple[ast.expr, ast.stmt]]:
    for node in walk(function):
        parent = script.tree.parent(node)
        if isinstance(node, ast.Return) and isinstance(parent, ast.If) and node in parent.body:
            yield parent.test, node


def _is_exit(script: Script, test: ast.expr) -> bool:
    """Whether a condition is that of an early exit, which has a finding of its own."""
    parent = script.tree.parent(test)
    return isinstance(parent, ast.If) and isinstance(parent.body[-1], _LEAVING)


def _is_within(node: ast.AST, part: ast.AST) -> bool:
    return any(each is node for each in walk(part))


def _closure(script: Script, part: ast.AST, names: set[str]) -> set[str]:
    """These names with all that is computed from them, or set where they decide, unless ranks made it equal."""
    equal = _made_equal(script, part)
    found = names - equal
    steps = list(_steps(script, part))
    for _ in range(3):
        before = set(found)
        for bound, agreed, values in steps:
            if agreed:
                found -= bound
            elif not bound <= found and any(_is_local(value, found) for value in values):
                found |= bound - equal
        if found == before:
            break
    return found


def _steps(script: Script, part: ast.AST) -> Iterator[tuple[set[str], bool, list[ast.expr]]]:
    """The assignments of a part: their names, whether ranks made the value equal, and what decides on it."""
    within = set(walk(part))
    for statement in (n for n in walk(part) if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign)):
        if statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        bound = {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name)} - {"self", "cls"}
        decided = [a.test for a in script.tree.inside(statement) if isinstance(a, ast.If) and a in within]
        yield bound, _agrees(script, statement.value), [statement.value, *decided]


def _made(script: Script, source: ast.expr) -> ast.expr:
    """What a name holds that a loop goes over, where that is a loader with a counter or a progress bar around it."""
    latest = script.names.latest(source.id, source) if isinstance(source, ast.Name) else None
    value = latest.value if latest is not None else source
    # With a progress bar on one rank, and without on the others.
    if isinstance(value, ast.IfExp):
        value = value.orelse
    if not isinstance(value, ast.Call):
        return source
    shows = dotted(value.func).rpartition(".")[2] in (*SHOWING, "enumerate")
    return value if shows else source


def _batch_names(script: Script, loop: Loop) -> set[str]:
    """What a loop binds in each turn, without the counter of enumerate."""
    if isinstance(loop, ast.While):
        return set()
    target: ast.expr = loop.target
    source = _made(script, loop.iter)
    while isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] in SHOWING and source.args:
        source = source.args[0]
    counted = isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] == "enumerate"
    if isinstance(source, ast.Call) and not counted:
        return set()  # a range, or something that is not known to be a loader
    # A loop that shows how far it came may count, too: for i, (x, y) in log_every(…)
    apart = isinstance(target, ast.Tuple) and isinstance(target.elts[-1], ast.Tuple) and source is not loop.iter
    # A name that a bar is put around on one rank may hold the counter as well.
    made = script.names.assigned(source.id, source) if isinstance(source, ast.Name) else []
    apart = apart or any(isinstance(a.value, ast.Call) and dotted(a.value.func) == "enumerate" for a in made)
    if (counted or apart) and isinstance(target, ast.Tuple) and len(target.elts) > 1:
        target = ast.Tuple(target.elts[1:], ast.Store())
    return {n.id for n in walk(target) if isinstance(n, ast.Name)}


def _losses(script: Script, loop: Loop) -> set[str]:
    """The losses of the loop's own backward passes, and of functions that make them and return the loss."""
    found = set()
    for backward in script.training.within(loop):
        if backward.loop is loop:
            found |= {n.id for n in walk(backward.loss) if isinstance(n, ast.Name)}
        else:
            function = script.tree.scope(backward.call)
            for call in (n for n in walk(loop) if isinstance(n, ast.Call)):
                parent = script.tree.parent(call)
                made = isinstance(parent, ast.Assign) and script.origins.called(call) is function
                if made and isinstance(parent, ast.Assign) and not _agrees(script, call):
                    found |= {n.id for t in parent.targets for n in walk(t) if isinstance(n, ast.Name)}
    counters = (
        {n.id for n in walk(getattr(loop, "target", loop)) if isinstance(n, ast.Name)} if _is_for(loop) else set()
    )
    found -= counters - _batch_names(script, loop)
    # What is not bound in the loop, such as the number that the loss is divided by, is the same on all ranks.
    return found & {n.id for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_for(loop: Loop) -> bool:
    return not isinstance(loop, ast.While)


def _made_equal(script: Script, part: ast.AST) -> set[str]:
    """Names that are reduced or broadcast in place."""
    found = set()
    for call in (n for n in walk(part) if isinstance(n, ast.Call)):
        if isinstance(script.tree.parent(call), ast.Expr) and _says_agreed(call):
            found |= {n.id for value in call.args for n in walk(value) if isinstance(n, ast.Name)}
    return found


def _agrees(script: Script, value: ast.AST) -> bool:
    """Whether a value is the same on all ranks: gathered, reduced, or from a function that does so."""
    for call in (n for n in walk(value) if isinstance(n, ast.Call)):
        if _says_agreed(call):
            return True
        function = script.origins.called(call)
        inside = walk(function) if isinstance(function, Function) else ()
        if any(isinstance(n, ast.Call) and _says_agreed(n) for n in inside):
            return True
    return False


def _says_agreed(call: ast.Call) -> bool:
    whole = dotted(call.func).lower()
    name = (method(call) or whole).lower()
    # An object that is called an agreement makes one, whatever its method is called.
    return "agree" in whole or _AGREEING.search(name) is not None


def _is_local(value: ast.AST, local: set[str], *, known: bool = False) -> bool:
    """Whether a value depends on one of these names by more than its size or its presence.

    What unknown functions say of them counts too, unless it must be known.
    """
    waiting: list[ast.AST] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and node.id in local:
            return True
        if isinstance(node, ast.Attribute) and node.attr in _SIZES:
            continue
        if isinstance(node, ast.Call):
            if dotted(node.func) in _CLOCKS:
                return True
            if _says_agreed(node) or dotted(node.func) in ("len", "isinstance", "hasattr", "getattr", "callable"):
                continue
            if method(node) in _SIZES or (known and not _is_known(node)):
                continue
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            continue
        waiting += children(node)
    return False


def _is_known(call: ast.Call) -> bool:
    """Whether this computes something of its arguments on this rank alone: torch, math, a method of a tensor."""
    first, dot, _ = dotted(call.func).partition(".")
    if isinstance(call.func, ast.Attribute):
        return first not in ("self", "utils")
    return not dot and first in _COMPUTING
