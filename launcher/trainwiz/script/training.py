"""The training itself: backward passes, updates, and windows of micro-batches that a script counts by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from trainwiz.script.engines import Engines
from trainwiz.script.names import Names, parameters
from trainwiz.script.origins import Origins, argument, given_on
from trainwiz.script.tree import Guard, Loop, Tree, constant, dotted, method, walk, written

SHOWING = ("tqdm", "trange", "track", "progress_bar", "log_every")
"""Functions that show how far a loop has come."""
_DUE = re.compile(r"sync|bound|updat|last|accum|is_step|should_step|do_step|stepping|due", re.IGNORECASE)
"""In the words of a condition that asks whether an update is due."""
_OPTIMIZERS = re.compile(r"(^|[._])(optim|optimizer|opt)s?(_(dict|list|map))?$", re.IGNORECASE)
"""The names of what holds several optimizers."""


@dataclass(frozen=True)
class Backward:
    """A backward pass."""

    call: ast.Call
    """The call."""
    loss: ast.expr
    """What it goes back from."""
    by: str
    """Whose method it is: Accelerator, DeepSpeedEngine, Booster, Fabric, Optimizer, GradScaler, or Tensor; NativeScaler
    for timm's, which is called with loss and optimizer and makes the update, too."""
    loop: Loop | None
    """The loop over batches around it."""


@dataclass(frozen=True)
class Window:
    """An update after every `size` micro-batches, counted in the script: `if (i + 1) % size == 0: optimizer.step()`."""

    loop: Loop
    """The loop over micro-batches."""
    step: ast.Call
    """The call that updates."""
    backward: Backward
    """The backward pass of each micro-batch."""
    test: ast.expr
    """The condition of the update."""
    size: ast.expr
    """The number of micro-batches."""
    early: int | None
    """How many micro-batches too early the first update comes, modulo `size` (-1: after the first one); None if the
    start of the counter is unknown."""
    tail: bool
    """Whether micro-batches after the last whole window make an update, too."""


class Training:
    """What a script does with gradients."""

    def __init__(self, tree: Tree, names: Names, engines: Engines, origins: Origins) -> None:
        self.tree, self.names, self.engines, self.origins = tree, names, engines, origins
        native = {name for outline in tree.outlines for name in outline.calls if name.endswith("loss_scaler")}
        self.backwards = [b for call in tree.calls_of("backward", *native) if (b := self._backward(call))]
        self.steps = [call for call in tree.calls_of("step") if self._is_step(call)]
        self.windows = [*self._windows(), *self._scaled_windows()]

    @cached_property
    def loops(self) -> list[Loop]:
        """The innermost loops around backward passes: one turn of each is a micro-batch."""
        return list(dict.fromkeys(b.loop for b in self.backwards if b.loop))

    def within(self, loop: Loop) -> list[Backward]:
        """The backward passes that a loop leads to, itself or by the script's functions."""
        return self._by_loop.get(loop, [])

    @cached_property
    def _by_loop(self) -> dict[Loop, list[Backward]]:
        found: dict[Loop, list[Backward]] = {}
        for backward in self.backwards:
            for loop in dict.fromkeys(self.origins.loops(backward.call)):
                found.setdefault(loop, []).append(backward)
        return found

    @cached_property
    def passes(self) -> list[Backward]:
        """The backward passes; those of a function that is given the loss, where it is called."""
        found: list[Backward] = []
        for backward in self.backwards:
            function, name = self.tree.scope(backward.call), dotted(backward.loss)
            given = name in parameters(function) and backward.loop is None
            sites = self.origins.sites(function) if given else []
            for site in sites:
                loss, loop = argument(function, name, site), next(iter(self.tree.loops(site)), None)
                if loss is not None:
                    found.append(Backward(site, loss, backward.by, loop))
            if not sites:
                found.append(backward)
        return list({(b.call, b.loop): b for b in found}.values())

    @cached_property
    def distinct(self) -> list[Backward]:
        """Of the backward passes of one function that go back from the same name, the first."""
        found = {(self.tree.scope(b.call), dotted(b.loss) or b.call): b for b in reversed(self.backwards)}
        return [b for b in self.backwards if found[self.tree.scope(b.call), dotted(b.loss) or b.call] is b]

    def losses(self, backward: Backward) -> list[ast.expr]:
        """What a backward pass goes back from; where its function gets that, what the calls of this give."""
        function, name = self.tree.scope(backward.call), dotted(backward.loss)
        if name not in parameters(function):
            return [backward.loss]
        given = [argument(function, name, site) for site in self.origins.sites(function)]
        return [value for value in given if value is not None] or [backward.loss]

    @cached_property
    def drawing(self) -> list[Loop]:
        """The innermost loops around backward passes that go over something, and do not only count micro-batches."""
        around = [[o for o in self.origins.loops(b.call) if self.source(o) is not None] for b in self.backwards]
        return list(dict.fromkeys(loops[0] for loops in around if loops))

    def source(self, loop: Loop) -> ast.expr | None:
        """The loader that a loop goes over, also where a generator of the project is between them."""
        given = self.given_on(loop)
        return given if given is not None and dotted(given) else loop_source(loop)

    def given_on(self, loop: Loop) -> ast.expr | None:
        """What a generator of the project that a loop goes over is given, and gives on."""
        call = loop.iter if not isinstance(loop, ast.While) else None
        while (
            isinstance(call, ast.Call) and call.args and dotted(call.func).rpartition(".")[2] in ("enumerate", "tqdm")
        ):
            call = call.args[0]
        function = self.origins.called(call) if isinstance(call, ast.Call) else None
        name = given_on(function) if function is not None else ""
        return argument(function, name, call) if name and function is not None else None  # type: ignore[arg-type]

    @cached_property
    def turns(self) -> list[Loop]:
        """The loops over micro-batches, also where a function of the script makes the backward pass."""
        around = [self.origins.loops(b.call)[:1] for b in self.backwards]
        return list(dict.fromkeys(loop for loops in around for loop in loops))

    def _backward(self, call: ast.Call) -> Backward | None:
        native = self._is_native_scaler(call)
        if not native and method(call) != "backward":
            return None
        loop = next(iter(self.tree.loops(call)), None)
        if native:
            return Backward(call, call.args[0], "NativeScaler", loop)
        assert isinstance(call.func, ast.Attribute)
        owner = call.func.value
        kind = self.engines.kind(owner)
        if kind in ("Accelerator", "DeepSpeedEngine", "Booster", "Fabric", "Optimizer"):
            named = (k.value for k in call.keywords if k.arg == "loss")
            loss = next(iter(call.args), None) or next(named, None)
            return Backward(call, loss, kind, loop) if loss is not None else None
        if isinstance(owner, ast.Call) and method(owner) == "scale":
            return Backward(call, owner.args[0], "GradScaler", loop) if owner.args else None
        if self.engines.deepspeed and call.args and self.engines.is_prepared(owner):
            return Backward(call, call.args[0], "DeepSpeedEngine", loop)
        name = dotted(owner)
        if call.args or name in ("self", "super") or kind:
            return None
        return Backward(call, owner, "Tensor", loop)

    def _is_native_scaler(self, call: ast.Call) -> bool:
        """Whether this is `loss_scaler(loss, optimizer, …)`."""
        if len(call.args) < 2 or not dotted(call.func).endswith("loss_scaler"):
            return False
        return self.engines.kind(call.args[1]) == "Optimizer"

    def _is_step(self, call: ast.Call) -> bool:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            return False
        owner = call.func.value
        if isinstance(owner, ast.Subscript):  # `optimizers[k].step()`
            return _OPTIMIZERS.search(dotted(owner.value)) is not None
        return self.engines.kind(owner) in ("Optimizer", "GradScaler")

    def _windows(self) -> Iterator[Window]:
        passes = {b.loop for b in self.backwards}
        for step in self.steps:
            around = self.tree.loops(step)
            learning = [one for one in around if one in passes]
            loop = next(iter([*learning, *around]), None)
            if loop is None:
                yield from self._told_windows(step)
                yield from self._helped_windows(step)
                continue
            before = [b for b in self.backwards if b.loop is loop and b.call.lineno <= step.lineno][-1:]
            for guard in self.tree.guards(step, within=loop):
                # A backward pass under the same condition is not accumulation: a generator trained every n-th time.
                each = [b for b in before if guard not in self.tree.guards(b.call, within=loop)]
                for part, alone in _alternatives(self.expanded(guard.test), guard.positive):
                    modulo = remainder(part, guard.positive)
                    if modulo and each and _number(modulo[1]) != 1:
                        tail = not alone or self._goes_on(loop, modulo[0]) or self._finishes(step, loop)
                        yield Window(loop, step, each[-1], guard.test, modulo[1], _early(loop, *modulo), tail)

    def _helped_windows(self, step: ast.Call) -> Iterator[Window]:
        """The same where a function makes the update, and the loop calls it: `if (i + 1) % n == 0: update(…)`."""
        for site in self.origins.sites(self.tree.scope(step)):
            around = self.tree.loops(site)
            for loop in around[:1]:
                inside = [b for b in self.backwards if self.tree.scope(b.call) is not self.tree.scope(step)]
                each = [b for b in inside if self._turn_of(b, loop) and self._is_apart(b, site, loop)][-1:]
                for guard in self.tree.guards(site, within=loop) if each else ():
                    for part, alone in _alternatives(self.expanded(guard.test), guard.positive):
                        modulo = remainder(part, guard.positive)
                        if modulo and _number(modulo[1]) != 1:
                            tail = not alone or self._goes_on(loop, modulo[0]) or self._finishes(site, loop)
                            early = _early(loop, *modulo)
                            yield Window(loop, step, each[0], guard.test, modulo[1], early, tail)

    def _turn_of(self, backward: Backward, loop: Loop) -> bool:
        """Whether each turn of a loop makes this backward pass, itself or by a function."""
        return backward.loop is loop or (backward.loop is None and self.origins.loops(backward.call)[:1] == [loop])

    def _is_apart(self, backward: Backward, site: ast.Call, loop: Loop) -> bool:
        """Whether a backward pass is not under the conditions of the update."""
        if backward.loop is not loop:
            return True
        mine = {id(guard.test) for guard in self.tree.guards(backward.call, within=loop)}
        return all(id(guard.test) not in mine for guard in self.tree.guards(site, within=loop))

    def _scaled_windows(self) -> Iterator[Window]:
        """The same of timm's scaler, which is told when to update: `loss_scaler(loss, optimizer, update_grad=…)`."""
        for backward in self.backwards if any(b.by == "NativeScaler" for b in self.backwards) else ():
            due = next((k.value for k in backward.call.keywords if k.arg == "update_grad"), None)
            if backward.by != "NativeScaler" or due is None or backward.loop is None:
                continue
            for part, _ in _alternatives(self.expanded(due), True):
                modulo = remainder(part, True)
                if modulo and _number(modulo[1]) != 1:
                    early = _early(backward.loop, *modulo)
                    yield Window(backward.loop, backward.call, backward, due, modulo[1], early, True)

    def _told_windows(self, step: ast.Call) -> Iterator[Window]:
        """The same where the loop is in another function, which says when the update is due: `if stepping: …`."""
        function = self.tree.scope(step)
        before = [b for b in self.backwards if self.tree.scope(b.call) is function and b.call.lineno <= step.lineno]
        for guard in self.tree.guards(step) if before else ():
            told = isinstance(guard.test, ast.Name) and guard.positive and guard.test.id in parameters(function)
            each = [b for b in before if guard not in self.tree.guards(b.call)][-1:]
            for test in self._told(function, guard.test.id) if told and each else ():  # type: ignore[attr-defined]
                loop = next(iter(self.tree.loops(test)), None)
                for part, _ in _alternatives(self.expanded(test), True):
                    modulo = remainder(part, True)
                    if loop is not None and modulo and _number(modulo[1]) != 1:
                        yield Window(loop, step, each[0], test, modulo[1], _early(loop, *modulo), True)

    def _told(self, function: ast.AST, name: str, depth: int = 3) -> Iterator[ast.expr]:
        """What callers give a parameter, through functions that only hand it on."""
        for site in self.origins.sites(function):
            given, caller = argument(function, name, site), self.tree.scope(site)
            if isinstance(given, ast.Name) and given.id in parameters(caller) and depth:
                yield from self._told(caller, given.id, depth - 1)
            elif given is not None:
                yield given

    @cached_property
    def split(self) -> list[Window]:
        """Windows whose last micro-batch has its own backward pass, beside the one of all others in an `else`."""
        return list(self._split_windows())

    def _split_windows(self) -> Iterator[Window]:
        for step in self.steps:
            loop = next((one for one in self.tree.loops(step) if one in self.loops), None)
            for guard in self.tree.guards(step, within=loop) if loop is not None else ():
                here = [b for b in self.backwards if b.loop is loop and guard in self.tree.guards(b.call, within=loop)]
                other = Guard(guard.test, not guard.positive)
                there = [b for b in self.backwards if b.loop is loop and other in self.tree.guards(b.call, within=loop)]
                same = [b for b in here if written(b.loss) in [written(one.loss) for one in there]]
                for part, _ in _alternatives(self.expanded(guard.test), guard.positive):
                    modulo = remainder(part, guard.positive)
                    if loop is not None and same and modulo and _number(modulo[1]) is None:
                        yield Window(loop, step, same[-1], guard.test, modulo[1], None, True)

    def _goes_on(self, loop: Loop, counter: ast.expr) -> bool:
        """Whether a counter of the script's own runs on from one epoch to the next, and windows with it."""
        name = _plus(counter)[0]
        target = getattr(loop, "target", None)
        if not name:  # `state["step"]` is no counter of the loop, and nothing says where it begins
            return any(isinstance(n, ast.Subscript) for n in walk(counter))
        if target is not None and name in {dotted(n) for n in walk(target)}:
            return False
        made = self.names.assigned(name, counter)
        added = any(isinstance(one.node, ast.AugAssign) for one in made)
        around = self.origins.loops(loop)
        reset = any(
            isinstance(one.value, ast.Constant) and set(around) & set(self.tree.loops(one.node)) for one in made
        )
        # A counter of an object outlives the method with the loop.
        return added and (bool(around) or name.startswith("self.")) and not reset

    def expanded(self, test: ast.expr) -> ast.expr:
        """The condition that a name was assigned, if it was one; of `not name`, the opposite."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.Name):
            meant = self.expanded(test.operand)
            return test if meant is test.operand else ast.UnaryOp(ast.Not(), meant)
        if isinstance(test, ast.Name) and (latest := self.names.latest(test.id, test)) and latest.alone:
            return _asked(latest.value)
        return _asked(test)

    def counted(self, test: ast.expr, positive: bool, *, opposite: bool = False) -> list[tuple[str, str, str]]:
        """Counter, divisor and remainder of each modulo in a condition, as it holds; or as it does not hold."""
        parts = [part for part, _ in _alternatives(self.expanded(test), positive)]
        found = [remainder(part, positive != opposite) for part in parts]
        return [(written(one[0]), written(one[1]), written(one[2])) for one in found if one is not None]

    def _is_left_on_purpose(self, loop: Loop) -> bool:
        """Whether there is no later epoch, and a number of updates ends the loop."""
        breaks = (n for n in walk(loop) if isinstance(n, ast.Break) and self.tree.loops(n)[:1] == [loop])
        return not self.origins.loops(loop) and any(True for _ in breaks)

    def _finishes(self, step: ast.Call, loop: Loop) -> bool:
        """Whether there is an update, or a deliberate end of the window, after the loop; or nothing is left over."""
        if loop_source(loop) is None or self._is_left_on_purpose(loop):
            return True
        end = self.tree.outline(loop), loop.end_lineno or loop.lineno
        scope = self.tree.scope(step)
        for node in walk(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self.tree.position(node) > end:
                same = self.engines.kind(node.func.value) in ("Optimizer", "GradScaler")
                if node.func.attr in ("step", "zero_grad") and same and loop not in self.tree.loops(node):
                    return True
        helper = self.origins.called(step)
        again = [c for c in self.origins.sites(helper) if self.tree.scope(c) is scope] if helper is not None else []
        if any(self.tree.position(c) > end and loop not in self.tree.loops(c) for c in again):
            return True
        return any(method(n) == "step" for part in loop.orelse for n in walk(part))


def _asked(value: ast.expr) -> ast.expr:
    """The condition in `True if condition else False` and `bool(condition)`."""
    if isinstance(value, ast.IfExp) and constant(value.body) is True and constant(value.orelse) is False:
        return value.test
    if isinstance(value, ast.Call) and dotted(value.func) == "bool" and len(value.args) == 1:
        return value.args[0]
    return value


def loop_source(loop: Loop) -> ast.expr | None:
    """The loader that a for-loop goes over, without enumerate and progress bars; None for ranges and the like."""
    if isinstance(loop, ast.While):
        return None
    source = loop.iter
    while isinstance(source, ast.Call) and source.args:
        last = dotted(source.func).rpartition(".")[2]
        if last not in ("enumerate", *SHOWING):
            break
        source = source.args[0]
    if isinstance(source, ast.Call):
        return source if dotted(source.func).endswith("skip_first_batches") else None
    return source if dotted(source) else None


def drawn_from(loop: Loop) -> ast.expr | None:
    """What a loop over a range, or without end, takes its batches from: `next(batches)`, `loader.next_batch()`."""
    for call in (n for n in walk(loop) if isinstance(n, ast.Call)):
        if dotted(call.func) == "next" and call.args:
            return call.args[0]
        if method(call) == "next_batch" and isinstance(call.func, ast.Attribute):
            return call.func.value
    return None


# docs/decisions/files.md: Lint stays silent if it does not know
def count_start(loop: Loop, counter: ast.expr) -> int | None:
    """The first value of the loop's own counter; None if the counter is not the loop's, or begins anywhere."""
    if isinstance(loop, ast.While):
        return None
    name = _plus(counter)[0]
    source: ast.expr = loop.iter
    while isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] in SHOWING and source.args:
        source = source.args[0]
    if not isinstance(source, ast.Call) or not name:
        return None
    function = dotted(source.func)
    if function == "enumerate":
        if not isinstance(loop.target, ast.Tuple) or dotted(loop.target.elts[0]) != name:
            return None
        starts = [*source.args[1:2], *[k.value for k in source.keywords if k.arg == "start"]]
        return _number(starts[0]) if starts else 0
    return None


def _early(loop: Loop, counter: ast.expr, size: ast.expr, rest: ast.expr) -> int | None:
    start, due = count_start(loop, counter), _plus_number(rest, size)
    # In turn k = 1, 2, … the counter is start + k - 1 + what is added; the update is due at k = size.
    return None if start is None or due is None else start + _plus(counter)[1] - 1 - due


def remainder(test: ast.expr, positive: bool) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Counter, divisor and remainder of `a % n == r`, as it holds if the test is so."""
    zero = ast.Constant(0)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return remainder(test.operand, not positive)
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod) and not positive:
        return test.left, test.right, zero
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.BinOp):
        wanted = ast.Eq if positive else ast.NotEq
        if isinstance(test.left.op, ast.Mod) and isinstance(test.ops[0], wanted):
            return test.left.left, test.left.right, test.comparators[0]
    return None


def _alternatives(test: ast.expr, positive: bool) -> Iterator[tuple[ast.expr, bool]]:
    """The parts of a condition, and whether each must hold (nothing else would do instead)."""
    if isinstance(test, ast.BoolOp):
        must = isinstance(test.op, ast.And) == positive
        for value in test.values:
            for part, alone in _alternatives(value, positive):
                yield part, alone and must
    else:
        yield test, True


def _plus(node: ast.expr) -> tuple[str | None, int]:
    """Name and number of `name`, `name + 1`, `1 + name`, `name - 1`."""
    if name := dotted(node):
        return name, 0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        sign = 1 if isinstance(node.op, ast.Add) else -1
        if (name := dotted(node.left)) and (number := _number(node.right)) is not None:
            return name, sign * number
        if (name := dotted(node.right)) and (number := _number(node.left)) is not None and sign == 1:
            return name, number
    return None, 0


def _plus_number(rest: ast.expr, size: ast.expr) -> int | None:
    """The remainder as a number, modulo the size: `n - 1` is -1."""
    number = _number(rest)
    if number is not None:
        known = _number(size)
        return number - known if known and number else number
    name, added = _plus(rest)
    return added if name and name == dotted(size) else None


def _number(node: ast.expr) -> int | None:
    return constant(node) if type(constant(node)) is int else None


def counts_to_window(window: Window, guard: Guard, expanded: Callable[[ast.expr], ast.expr]) -> bool:
    """Whether a condition may hold at the end of a window only: it counts, or asks whether the update is due."""
    test = expanded(guard.test)
    text = written(test)
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Gt | ast.GtE | ast.Lt | ast.LtE)
        and "%" not in text
    ):
        return False  # the end of the training
    return "%" in text or text == written(window.test) or _DUE.search(text) is not None


def describe(guard: Guard) -> str:
    """The condition as one would say it."""
    if not guard.positive and isinstance(guard.test, ast.UnaryOp) and isinstance(guard.test.op, ast.Not):
        return written(guard.test.operand)
    text = written(guard.test)
    return text if guard.positive else f"not ({text})"
