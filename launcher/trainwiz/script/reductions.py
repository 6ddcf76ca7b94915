"""Whether a loss is a sum over the samples of a micro-batch: by how what it is made of grows with their number."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from trainwiz.script.tree import Function, constant, dotted, method, walk

if TYPE_CHECKING:
    from trainwiz.script import Script

Growth = Literal["fixed", "rows", "count", "mean", "sum", "unknown"]
"""fixed: it has nothing to do with the batch. rows: a value for each sample, or a batch. count: their number.

mean and sum: a number that stays as it is, or grows with their number. unknown: made of both.
"""
_LOSSES = """
bce_loss binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss
triplet_margin_loss
""".split()  # noqa: SIM905
_ALONG = ("dim", "axis")
_COUNTS = ("len", "numel", "nelement", "size")
_DEPTH = 6
_MOST_MAKERS = 20


class Reductions:
    """What the values of a script's functions are, for one micro-batch."""

    def __init__(self, script: Script, classes: Sequence[ast.ClassDef] = ()) -> None:
        """`classes` are those whose methods and attributes `self` has."""
        self._script, self._classes, self._depth = script, classes, 0

    def of_function(self, function: Function, batch: Iterable[str]) -> Growth:
        """What a function returns, if these names are of the batch; of several values the first, or the loss."""
        known: dict[str, Growth] = dict.fromkeys(batch, "rows")
        found: list[Growth] = []
        self._depth += 1
        for statement in sorted((n for n in walk(function) if isinstance(n, ast.stmt)), key=lambda n: n.lineno):
            if isinstance(statement, ast.Return) and statement.value is not None:
                found.append(self.of(statement.value, known))
            self.give(statement, known)
        self._depth -= 1
        return _joined(found)

    def give(self, statement: ast.stmt, known: dict[str, Growth]) -> None:
        """Enter what an assignment gives its names."""
        if isinstance(statement, ast.For):
            known |= dict.fromkeys(assigned_names(statement.target), self.of(statement.iter, known))
        elif isinstance(statement, ast.Assign):
            growth = self.of(statement.value, known)
            for target in statement.targets:
                known |= dict.fromkeys(assigned_names(target), growth)
        elif isinstance(statement, ast.AnnAssign) and statement.value:
            known |= dict.fromkeys(assigned_names(statement.target), self.of(statement.value, known))
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            known[statement.target.id] = self._computed(
                known.get(statement.target.id, "fixed"), statement.op, self.of(statement.value, known)
            )

    def of(self, node: ast.expr, known: dict[str, Growth]) -> Growth:
        """What an expression is."""
        if isinstance(node, ast.Name):
            return known.get(node.id, "fixed")
        if isinstance(node, ast.Call):
            return self._called(node, known)
        if isinstance(node, ast.BinOp):
            return self._computed(self.of(node.left, known), node.op, self.of(node.right, known))
        if isinstance(node, ast.Tuple) and node.elts:
            return self.of(node.elts[0], known)
        if isinstance(node, ast.Dict):
            by_name = {constant(k): v for k, v in zip(node.keys, node.values, strict=True) if k is not None}
            if "loss" in by_name:
                return self.of(by_name["loss"], known)
        if isinstance(node, ast.IfExp):
            return _joined([self.of(node.body, known), self.of(node.orelse, known)])
        if isinstance(node, ast.Attribute):
            inner = self.of(node.value, known)
            return "mean" if node.attr == "loss" and inner == "rows" else inner
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return "count" if self.of(node.value.value, known) == "rows" else "fixed"
        if isinstance(node, ast.Lambda):
            return "fixed"
        parts = [self.of(one, known) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return _joined(parts)

    def _called(self, call: ast.Call, known: dict[str, Growth]) -> Growth:
        last = dotted(call.func).rpartition(".")[2] or method(call)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        given = [*call.args, *(one.value for one in call.keywords)]
        parts = [self.of(one, known) for one in given]
        of_module = owner is not None and dotted(owner).rpartition(".")[2] in ("torch", "F", "functional")
        parts += [self.of(owner, known)] if owner is not None and not of_module else []
        inner = _joined(parts)
        if last in ("sum", "nansum", "mean", "nanmean"):
            along = call.args[1:] if of_module else call.args if owner is not None else []
            named = any(one.arg in _ALONG for one in call.keywords)
            if inner == "rows" and not along and not named:
                return "sum" if "sum" in last else "mean"
            return inner
        if last in _COUNTS and "rows" in parts:
            return "count"
        if last in ("div", "div_", "divide", "true_divide") and len(parts) == 2:
            left, right = parts if of_module else reversed(parts)
            return self._computed(left, ast.Div(), right)
        function = self.function(call)
        if function is not None and self._depth < _DEPTH and "rows" in parts:
            return self.of_function(function, bound(function, call, known, self))
        if "rows" in parts and (loss := self.loss(call)) is not None:
            return _reduction(loss, call)
        return inner

    def loss(self, call: ast.Call) -> ast.Call | None:
        """The call that says how a loss is reduced: its own, or the one that made what is called."""
        last = dotted(call.func).rpartition(".")[2]
        if last in _LOSSES:
            return call
        if isinstance(call.func, ast.Call):
            return call.func if dotted(call.func.func).endswith("Loss") else None
        for made in self.makers(call.func):
            if isinstance(made, ast.Call) and dotted(made.func).endswith("Loss"):
                return made
        return None

    def makers(self, node: ast.expr) -> Iterable[ast.expr]:
        """What makes the object that is called, whatever function it was passed to and device it was moved to."""
        waiting, seen = [node], 0
        while waiting and seen < _MOST_MAKERS:
            made, seen = _unplaced(waiting.pop()), seen + 1
            if isinstance(made, ast.Name | ast.Attribute):
                waiting += self._given(made)
            else:
                yield made

    def _given(self, node: ast.Name | ast.Attribute) -> list[ast.expr]:
        if isinstance(node, ast.Name):
            given = [one.value for one in self._script.names.assigned(node.id, node) if one.value is not None]
            passed = None if given else self._script.values.passed(node)
            return (given or self._built_with(node)) if passed is None else [passed]
        name = dotted(node)
        if not name.startswith("self."):
            return []
        sets = (one for owner in self._classes for one in walk(owner) if isinstance(one, ast.Assign))
        return [one.value for one in sets if any(dotted(target) == name for target in one.targets)]

    def _built_with(self, name: ast.Name) -> list[ast.expr]:
        """What the class of `self` is made with for a parameter of its `__init__`, else the parameter's default."""
        start = self._script.tree.scope(name)
        owner = next((one for one in self._classes if any(start is each for each in one.body)), None)
        if owner is None or not isinstance(start, Function) or start.name != "__init__":
            return []
        names = [one.arg for one in start.args.args][1:]
        defaults = zip(reversed(names), reversed(start.args.defaults), strict=False)
        keyword_only = zip((one.arg for one in start.args.kwonlyargs), start.args.kw_defaults, strict=True)
        default = {**dict(defaults), **dict(keyword_only)}.get(name.id)
        found = []
        for call in self._script.tree.calls_of(owner.name):
            place = names.index(name.id) if name.id in names else len(call.args)
            given = argument(call, name.id, place)
            found += [one for one in (given or default,) if one is not None]
        return found

    def function(self, call: ast.Call) -> Function | None:
        """The script's own function that a call runs: by its name, a method of `self`, or the forward of a loss."""
        name = dotted(call.func)
        if isinstance(call.func, ast.Name) and (named := self._script.names.function(name)) is not None:
            return named
        makers = [call.func] if isinstance(call.func, ast.Call) else self.makers(call.func)
        made = {dotted(one.func) for one in makers if isinstance(one, ast.Call)}
        owner = next((one for one in self._script.tree.of(ast.ClassDef) if one.name in made), None)
        if owner is not None and owner.name.endswith(("Loss", "Criterion", "loss", "criterion")):
            return next((one for one in owner.body if isinstance(one, Function) and one.name == "forward"), None)
        own = "forward" if name == "self" else name.removeprefix("self.")
        if own == name or "." in own:
            return None
        inside = (one for owner in self._classes for one in owner.body if isinstance(one, ast.FunctionDef))
        return next((one for one in inside if one.name == own), None)

    @staticmethod
    def _computed(left: Growth, operator: ast.operator, right: Growth) -> Growth:
        if isinstance(operator, ast.Div) and left == "sum":
            return "sum" if right == "fixed" else "mean"  # a sum of weights or of a mask is one over the batch, too
        if isinstance(operator, ast.Mult) and {left, right} == {"mean", "count"}:
            return "sum"
        if "rows" in (left, right):
            return "rows"
        return _joined([left, right])


def _unplaced(made: ast.expr) -> ast.expr:
    """What makes an object, without what then moves it to a device."""
    while isinstance(made, ast.Call) and method(made) in ("to", "cuda", "half", "float", "double"):
        made = made.func.value  # type: ignore[attr-defined]
    return made


def _reduction(said: ast.Call, call: ast.Call) -> Growth:
    words = {one.arg: constant(one.value) for one in (*said.keywords, *call.keywords)}
    reduction = words.get("reduction", "sum" if words.get("size_average") is False else "mean")
    return "sum" if reduction == "sum" else "rows" if reduction == "none" else "mean"


def _joined(parts: Iterable[Growth]) -> Growth:
    """What is made of several: what has to do with the batch decides, if there is one such kind."""
    kinds = set(parts) - {"fixed"}
    if "rows" in kinds:
        return "rows"
    kinds -= {"count"} if len(kinds) > 1 else set()
    return kinds.pop() if len(kinds) == 1 else "unknown" if kinds else "fixed"


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """What a call is given by this name, or in this place, unless it is None."""
    given = next((one.value for one in call.keywords if one.arg == name), None) or next(iter(call.args[place:]), None)
    return None if isinstance(given, ast.Constant) and given.value is None else given


def assigned_names(target: ast.expr) -> list[str]:
    """The names in what an assignment gives its value to."""
    return [one.id for one in ast.walk(target) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)]


def bound(function: Function, call: ast.Call, known: dict[str, Growth], reductions: Reductions) -> list[str]:
    """The parameters that are given something of the batch."""
    names = [one.arg for one in function.args.args]
    names = names[1:] if names[:1] == ["self"] else names
    pairs = [*zip(names, call.args, strict=False), *((one.arg or "", one.value) for one in call.keywords)]
    return [name for name, value in pairs if reductions.of(value, known) == "rows"]
