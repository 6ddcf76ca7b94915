"""Where values of a script come from: through names, parameters, and what its own functions return."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from trainwiz.script.names import Assignment, Names, parameters
from trainwiz.script.tree import Function, Loop, Tree, dotted, walk

_DEPTH = 8
"""Steps from a value to what makes it."""
_PASSING = ("tqdm", "trange", "track", "enumerate", "iter", "list", "zip", "cycle", "islice", "skip_first_batches")
"""Functions that give on what they are given first."""
_STARTS = ("spawn", "start_processes", "Process")
"""Functions that start another one in processes of its own."""
_TRAINS = re.compile(
    r"^(train|optimi[sz]e|fit|accumulate|forward_backward|backward|run)_(\w*_)?(epoch|gradients|parameters|batch|iters?)$"
)
"""Methods that no library calls, and that train."""
_PLAIN = ("object", "Module", "ABC")
"""Classes that call no method that trains."""
_TELLING = ("train", "eval", "to", "cuda", "cpu", "half", "float", "bfloat16", "requires_grad_")
"""Methods that return their own object."""


class Origins:
    """What makes the values of one module, and from where its functions are called."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self.tree, self.names = tree, names
        self._loops: dict[tuple[ast.AST, int], list[Loop]] = {}
        self._following = False
        # What is followed depends on whether an object's own makers are being followed already.
        self._calls: dict[tuple[str, bool], list[ast.Call]] = {}
        self._called: dict[tuple[ast.Call, bool], Function | None] = {}
        self._returns: dict[Function, list[ast.expr]] = {}
        self._made: dict[tuple[ast.AST, int, bool], tuple[ast.expr, ...]] = {}
        self._given: dict[tuple[ast.AST, str], list[ast.expr]] = {}
        self._aliases: dict[tuple[str, ast.AST, int], frozenset[str]] = {}

    @cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.of(ast.ClassDef)}

    def _calls_of(self, name: str) -> list[ast.Call]:
        """The calls of what may be the project's own function of this name."""
        key = name, self._following
        if key not in self._calls:
            self._calls[key] = [call for call in self.names.calls_of(name) if self._own(call) == name]
        return self._calls[key]

    def sites(self, function: ast.AST) -> list[ast.Call]:
        """The calls of one of the module's own functions; none where its name is not the only one."""
        if isinstance(function, Function) and function.name == "__init__":
            owner = self.tree.parent(function)
            return self._calls_of(owner.name) if isinstance(owner, ast.ClassDef) else []
        if not isinstance(function, Function):
            return []
        if function.name == "__call__":
            return self._calls_of_objects(self.tree.parent(function))
        if self.names.function(function.name) is not function:
            if isinstance(self.tree.parent(function), ast.ClassDef):
                return self._within_class(function) or self._of_unknown(function)
            return [call for call in self.names.calls_of(function.name) if self.called(call) is function]
        return self._calls_of(function.name) or self._of_unknown(function)

    def _of_unknown(self, function: Function) -> list[ast.Call]:
        """The calls of a method that trains by its name, of unknown objects: `model.optimize_parameters()`."""
        kind = self.tree.parent(function)
        if not _TRAINS.search(function.name) or not isinstance(kind, ast.ClassDef):
            return []
        bases = [dotted(base).rpartition(".")[2] for base in kind.bases]
        if not all(base in self._classes or base in _PLAIN for base in bases):
            return []  # a library's class may call it
        calls = [call for call in self.tree.calls_of(function.name) if isinstance(call.func, ast.Attribute)]
        others = [c for c in calls if dotted(c.func.value) not in ("self", "super", "cls") and self.called(c) is None]  # type: ignore[attr-defined]
        return others if len(others) == len(calls) else []

    def called(self, call: ast.Call) -> Function | None:
        """The module's own function that is called."""
        key = call, self._following
        if key not in self._called:
            name = self._own(call)
            found = self.names.function(name, call) if name else None
            self._called[key] = self._of_class(call, name) if name and found is None else found
        return self._called[key]

    def _within_class(self, function: Function) -> list[ast.Call]:
        """The calls of a method of a class, where other functions have its name, too."""
        calls = self.tree.calls_of(function.name)
        own = [call for call in calls if self._of_class(call, function.name) is function]
        own = own or [call for call in calls if self._may_be(call, function)]
        return own or [call for call in calls if self._is_given_on(call, function)]

    def _is_given_on(self, call: ast.Call, function: Function) -> bool:
        """Whether a method calls that of the same name of its parts: `for meter in self.meters: meter.reset()`."""
        around, owner = self.tree.scope(call), self._around(call)
        return (
            isinstance(around, Function)
            and around.name == function.name
            and owner is not None
            and owner is not self.tree.parent(function)
            and self._is_item(call)
        )

    def _is_item(self, call: ast.Call) -> bool:
        """Whether the object of a method is what a loop around it goes through."""
        owner = dotted(call.func).rpartition(".")[0]
        loops = [loop for loop in self.tree.loops(call) if not isinstance(loop, ast.While)]
        return any(owner in {dotted(n) for n in walk(loop.target)} - {""} for loop in loops)

    def _calls_of_objects(self, kind: ast.AST | None) -> list[ast.Call]:
        """The calls of the objects of one of the module's own classes: `evaluate = Evaluation(); evaluate(model)`."""
        made = self._calls_of(kind.name) if isinstance(kind, ast.ClassDef) else []
        bound = [one for call in made for one in self.names.bound_to(call) if one.alone]
        found = [
            call
            for one in bound
            for call in self.tree.calls_of(one.name.rpartition(".")[2])
            if dotted(call.func) == one.name and one in self.names.assigned(one.name, call)
        ]
        direct = [self.tree.parent(call) for call in made]
        found += [above for above in direct if isinstance(above, ast.Call) and above.func in made]
        return list(dict.fromkeys(found))

    def _may_be(self, call: ast.Call, function: Function) -> bool:
        """Whether a class calls its own method, which the class of the function overrides."""
        if dotted(call.func) != f"self.{function.name}":
            return False
        kind, caller = self.tree.parent(function), self._around(call)
        waiting, seen = [kind], set()
        while waiting:
            one = waiting.pop()
            if one is caller and one is not kind:
                return True
            if isinstance(one, ast.ClassDef) and one.name not in seen:
                seen.add(one.name)
                waiting += [self._classes.get(self.names.resolved(base).rpartition(".")[2]) for base in one.bases]
        return False

    def _around(self, node: ast.AST) -> ast.ClassDef | None:
        return next((a for a in self.tree.above(node) if isinstance(a, ast.ClassDef)), None)

    def _of_class(self, call: ast.Call, name: str) -> Function | None:
        """The method of this name of the class that a call's object is of: the one around it, or what made it."""
        owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if owner == "self":
            kind = self._around(call)
        else:
            kinds = self._kinds(call) if owner else []
            kind = self._classes.get(kinds[0]) if len(set(kinds)) == 1 else None
        found = [f for f in kind.body if isinstance(f, Function) and f.name == name] if kind is not None else []
        return found[0] if len(found) == 1 else None

    def _kinds(self, call: ast.Call) -> list[str]:
        """The names of what makes the object whose method is called."""
        if not isinstance(call.func, ast.Attribute):
            return []
        owner = call.func.value
        assigned = self.names.assigned(dotted(owner), call) if self._classes else []
        if not assigned and (kind := self.names.resolved(owner).rpartition(".")[2]) in self._classes:
            return [kind]
        made: list[ast.AST] = [a.value for a in assigned if a.alone]
        # `self.trainer = trainer` says as little as a parameter does.
        said = any(isinstance(value, ast.Call) and not self._is_of_function(value) for value in made)
        if self._classes and not said and isinstance(owner, ast.Name | ast.Attribute) and not self._following:
            self._following = True  # which asks for calls in turn
            made = list(self.makers(owner))
            self._following = False
        kinds = [self.names.resolved(_made_first(m).func) for m in made if isinstance(m, ast.Call)]
        # `Checkpointer.of(folder)` makes one as well.
        return [next((part for part in kind.split(".") if part in self._classes), kind) for kind in kinds]

    def _is_of_function(self, call: ast.Call) -> bool:
        """Whether a function of the project makes a value, which says only by what it returns of which kind that is."""
        return self.names.function(self.names.resolved(call.func).rpartition(".")[2]) is not None

    def _own(self, call: ast.Call) -> str:
        """The name of what may be the project's own function: `f(…)`, `module.f(…)`, `self.f(…)`, `object.f(…)`."""
        name = self.names.resolved(call.func)
        owner, _, last = name.rpartition(".")
        if not owner:
            return last
        function = self.names.function(last)
        if function is not None and not isinstance(self.tree.parent(function), ast.ClassDef):
            return ""  # `model.train()` is not the module's own `train`
        if owner == "self":
            return last
        kinds = self._kinds(call)
        return last if kinds and all(kind in self._classes for kind in kinds) else ""

    def kind(self, name: str) -> ast.ClassDef | None:
        """One of the project's own classes."""
        return self._classes.get(name)

    def methods(self, kind: str) -> list[Function]:
        """The methods that one of the project's own classes defines."""
        found = self._classes.get(kind)
        return [one for one in found.body if isinstance(one, Function)] if found is not None else []

    def loops(self, node: ast.AST, depth: int = 3) -> list[Loop]:
        """The loops around a node, and around the calls of its function, innermost first."""
        if (node, depth) not in self._loops:
            self._loops[node, depth] = self._loops_around(node, depth)
        return self._loops[node, depth]

    def _loops_around(self, node: ast.AST, depth: int) -> list[Loop]:
        found = self.tree.loops(node)
        function = self.tree.scope(node)
        for site in (self.sites(function) or self.handed(function)) if depth else ():
            found += [loop for loop in self.loops(site, depth - 1) if loop not in found]
        return found

    def handed(self, function: ast.AST) -> list[ast.Call]:
        """The calls that get a function of the one around them, to call it: `timed(train_step)`."""
        outer = self.tree.scope(function)
        if not isinstance(function, Function) or not isinstance(outer, Function):
            return []
        used = [self.tree.parent(n) for n in self.tree.mentions(function.name) if isinstance(n, ast.Name)]
        return [call for call in used if isinstance(call, ast.Call) and outer in self.tree.above(call)]

    def makers(self, node: ast.AST) -> list[ast.expr]:
        """The expressions that may have made a value, as far as it can be followed."""
        return list(self._makers(node, _DEPTH))

    def _makers(self, node: ast.AST, depth: int) -> tuple[ast.expr, ...]:
        """Each once, and found once: many ways lead to the same value."""
        if depth == 0 or not isinstance(node, ast.expr):
            return ()
        key = node, depth, self._following
        if key not in self._made:
            self._made[key] = tuple(dict.fromkeys(self._found(node, depth)))
        return self._made[key]

    def _found(self, node: ast.expr, depth: int) -> Iterator[ast.expr]:
        if isinstance(node, ast.IfExp):
            yield from self._makers(node.body, depth - 1)
            yield from self._makers(node.orelse, depth - 1)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, None, depth)
        elif name := dotted(node):
            assigned = self.names.assigned(name, node)
            for assignment in assigned:
                yield from self._of_assignment(assignment, depth - 1)
            # In `loader = endless(loader)`, the second one is still what the function was given.
            if not assigned or (len(assigned) == 1 and self.tree.statement(node) is assigned[0].node):
                yield from self._of_parameter(name, node, depth - 1)

    def _of_call(self, call: ast.Call, index: int | None, depth: int) -> Iterator[ast.expr]:
        function = self.called(call)
        given = given_on(function) if function is not None else ""
        if given and function is not None and depth:
            value = argument(function, given, call)
            yield from self._makers(value, depth - 1) if value is not None else ()
        elif function is not None and depth:
            for value in self._returned(function):
                if index is not None and isinstance(value, ast.Call):  # another function makes all of them
                    yield from self._of_call(value, index, depth - 1)
                    continue
                if index is not None and isinstance(value, ast.Tuple) and index < len(value.elts):
                    value = value.elts[index]
                yield from self._makers(value, depth - 1)
        elif dotted(call.func).rpartition(".")[2] in _PASSING and call.args:
            yield from self._makers(call.args[0], depth - 1)
        else:
            yield call

    def _returned(self, function: Function) -> list[ast.expr]:
        """What a function returns, in order."""
        if function not in self._returns:
            found = [n for n in walk(function) if isinstance(n, ast.Return) and self.tree.scope(n) is function]
            self._returns[function] = [n.value for n in found if n.value is not None]
        return self._returns[function]

    def _of_assignment(self, assignment: Assignment, depth: int) -> Iterator[ast.expr]:
        value = assignment.value
        if assignment.alone:
            if isinstance(value, ast.Name) and value.id == assignment.name:
                return
            if isinstance(value, ast.Call | ast.IfExp) or dotted(value):
                yield from self._makers(value, depth)
            else:
                yield value
        elif isinstance(value, ast.Call):
            yield from self._of_call(value, position(assignment), depth)

    def _of_parameter(self, name: str, node: ast.AST, depth: int) -> Iterator[ast.expr]:
        for given in self.given(name, node):
            yield from self._makers(given, depth)

    def given(self, name: str, node: ast.AST) -> list[ast.expr]:
        """What the calls of the function around a node give its parameter of this name."""
        scope: ast.AST = self.tree.scope(node)
        while name not in parameters(scope) and scope is not self.tree.module:
            scope = self.tree.scope(scope)
        if scope is self.tree.module:
            return []
        if (scope, name) not in self._given:
            found = [argument(scope, name, site) for site in self.sites(scope)]
            found += [_spawned(scope, name, call) for call in self._spawning(scope)]
            self._given[scope, name] = [value for value in found if value is not None]
        return self._given[scope, name]

    def results(self, assignment: Assignment) -> list[ast.expr]:
        """What the project's own function returns for a name that gets its result, or that part of it."""
        value = assignment.value
        function = self.called(value) if isinstance(value, ast.Call) else None
        if function is None:
            return []
        index = None if assignment.alone else position(assignment)
        found = []
        for one in self._returned(function):
            if index is None and assignment.alone:
                found.append(one)
            elif index is not None and isinstance(one, ast.Tuple) and index < len(one.elts):
                found.append(one.elts[index])
        return found

    def aliases(self, node: ast.AST, depth: int = 4) -> frozenset[str]:
        """The dotted names that a value is known by, here and where it comes from."""
        if isinstance(node, ast.Call) and node.args and dotted(node.func).endswith("unwrap_model"):
            node = node.args[0]
        name = dotted(node).removesuffix(".module")
        if not name or not depth:
            return frozenset((name,)) - {""}
        key = name, self.tree.scope(node), depth
        if key not in self._aliases:
            self._aliases[key] = frozenset((name,))  # `model = model.module` must not be asked for ever
            known = self.names.assigned(name, node)
            values = [a.value for a in known if a.alone and dotted(a.value)] or self.given(name, node)
            self._aliases[key] = frozenset((name,)).union(*(self.aliases(value, depth - 1) for value in values))
        return self._aliases[key]

    def returned(self, function: Function) -> list[ast.expr]:
        """What one of the project's own functions returns."""
        return self._returned(function)

    def is_spawned(self, function: ast.AST) -> bool:
        """Whether torch.multiprocessing starts a function in each process, with the rank as its first argument."""
        return any(_starts(call) == "spawn" for call in self._spawning(function))

    def _spawning(self, function: ast.AST) -> list[ast.Call]:
        """The calls that start a function in processes of their own."""
        if not isinstance(function, Function):
            return []
        return [call for call in self.names.calls_of(*_STARTS) if dotted(_started(call)) == function.name]


def _made_first(call: ast.Call) -> ast.Call:
    """The call that makes what is moved or told at once: `Network()` of `Network().cuda().train()`."""
    while isinstance(call.func, ast.Attribute) and call.func.attr in _TELLING and isinstance(call.func.value, ast.Call):
        call = call.func.value
    return call


def given_on(function: Function) -> str:
    """The parameter whose items a generator yields, again and again: `for x in loader: yield x`; kept on the node."""
    if "_given_on" not in function.__dict__:
        function._given_on = _yielded_of(function)  # type: ignore[union-attr]
    given: str = function.__dict__["_given_on"]
    return given


def _yielded_of(function: Function) -> str:
    if "_yields" not in function.__dict__:
        return ""
    yields = [n.value for n in walk(function) if isinstance(n, ast.Yield)]
    if not yields:
        return ""
    for loop in (n for n in walk(function) if isinstance(n, ast.For)):
        name = dotted(_passing(loop.iter))
        if name in parameters(function) and any(value is not None and _is_target(value, loop) for value in yields):
            return name
    return _drawn_on(function, yields)


def _drawn_on(function: Function, yields: list[ast.expr | None]) -> str:
    """The same where each item is drawn: `batch = next(batches); yield batch`."""
    made = {dotted(n.targets[0]): n.value for n in walk(function) if isinstance(n, ast.Assign)}
    drawn = [made.get(dotted(value)) for value in yields if value is not None]
    for call in (one for one in drawn if isinstance(one, ast.Call) and dotted(one.func) == "next" and one.args):
        source = made.get(dotted(call.args[0]), call.args[0])
        name = dotted(_passing(source))
        if name in parameters(function):
            return name
    return ""


def _passing(value: ast.expr) -> ast.expr:
    """What enumerate and the like are given first."""
    while isinstance(value, ast.Call) and value.args and dotted(value.func).rpartition(".")[2] in _PASSING:
        value = value.args[0]
    return value


def _is_target(value: ast.expr, loop: ast.For) -> bool:
    """Whether an item of the loop is yielded, with its number or without."""
    items = {dotted(n) for n in walk(loop.target)} - {""}
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    return any(dotted(one) in items for one in values)


def argument(function: ast.AST, name: str, call: ast.Call) -> ast.expr | None:
    """What a call gives to a parameter of a function."""
    if not isinstance(function, Function):
        return None
    named = next((k.value for k in call.keywords if k.arg == name), None)
    positions = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if positions[:1] == ["self"] and (isinstance(call.func, ast.Attribute) or function.name == "__init__"):
        positions = positions[1:]
    if named is None and name in positions and positions.index(name) < len(call.args):
        return call.args[positions.index(name)]
    return named


def _starts(call: ast.Call) -> str:
    """How a call starts a function: `spawn` gives it the rank first."""
    last = dotted(call.func).rpartition(".")[2]
    return "spawn" if last == "start_processes" else last


def _started(call: ast.Call) -> ast.expr:
    """The function that a call starts in processes of its own."""
    named = (k.value for k in call.keywords if k.arg in ("target", "fn"))
    return next(named, call.args[0] if call.args else call)


def _spawned(function: ast.AST, name: str, call: ast.Call) -> ast.expr | None:
    """What a function that is started in processes of its own gets for a parameter."""
    assert isinstance(function, Function)
    positions = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    given = next((k.value for k in call.keywords if k.arg == "args"), None)
    if given is None and _starts(call) == "spawn" and len(call.args) > 1:
        given = call.args[1]
    index = positions.index(name) - (_starts(call) == "spawn") if name in positions else -1
    if isinstance(given, ast.Tuple) and 0 <= index < len(given.elts):
        return given.elts[index]
    return None


def position(assignment: Assignment) -> int | None:
    """The place of the name among those that a value is unpacked into."""
    targets = assignment.node.targets if isinstance(assignment.node, ast.Assign) else []
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            return next((i for i, part in enumerate(target.elts) if dotted(part) == assignment.name), None)
    return None
