"""What the mean of a loss is over, where a micro-batch says it without the model: labels, weights, or a mask.

The mean of a real batch is the sum of all micro-batches over the sum of what each divides by. What they divide by is
taken out of the script, for the task to count; a loss of several means, over different numbers, has no such count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainwiz.script.counts import LABELS, NUMBERS, Block, Divisor, Reach, count, plain
from trainwiz.script.models import of_transformers
from trainwiz.script.reductions import Growth, Reductions, argument, assigned_names, bound
from trainwiz.script.slices import Gap, Slice, flat
from trainwiz.script.tree import Function, constant, dotted, method, walk

if TYPE_CHECKING:
    from trainwiz.script import Script

OF_LABELS = ("CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss")
"""Losses whose mean is over the labels that are not ignored, or over the weights of their classes."""
_DEPTH = 5


@dataclass(frozen=True, kw_only=True)
class Mean:
    """What the means of a loss are over."""

    nodes: tuple[ast.expr, ...]
    """Where they are divided."""
    batch: str = ""
    """What the count takes the micro-batch as, as it is written."""
    over: Slice | None = None
    """The count of a micro-batch, where all are over the same; the batch alone decides it."""


@dataclass
class Means:
    """Finds them in a script."""

    script: Script
    """The script that they are in."""
    classes: Sequence[ast.ClassDef] = ()
    """Those whose methods and attributes `self` has."""
    barred: Sequence[str] = ()
    """Names of the model, and of what belongs to the engine."""
    given: Mapping[int, str] = field(default_factory=dict)
    """Texts in the place of nodes, by their identity: what the task has of the script already."""

    notes: bool = False
    """Whether the task has built the module that `self` is when it counts, and can read its attributes."""

    def __post_init__(self) -> None:
        self._reductions = Reductions(self.script, self.classes)

    def of_block(self, loss: ast.expr, block: Sequence[ast.stmt], batch: str) -> Mean | None:
        """The means of a loss in a block, which unpacks the micro-batch so."""
        names = tuple(node.id for node in ast.walk(ast.parse(batch)) if isinstance(node, ast.Name))
        return self._mean(self._of(loss, self._block(block, names), 0), batch)

    def of_method(self, function: Function) -> Mean | None:
        """The means of what a method returns, whose first parameter but the model is the micro-batch."""
        names = [one.arg for one in function.args.args if one.arg not in (*self.barred, "self")]
        block = self._block(flat(function.body), tuple(names[:1]), of_self=True)
        return self._mean(self._returned(function, block, 0), names[0]) if names else None

    def _mean(self, found: list[Divisor], batch: str) -> Mean | None:
        """One count for all of them, if there is one."""
        told = [one for one in found if one.over is not None]
        alike = len(told) == len(found) and len({one.written for one in told}) == 1
        if alike and (over := self._count(told[0])) is not None:
            return Mean(nodes=tuple(one.node for one in found), batch=batch, over=over)
        told = [one for one in told if not one.usual]
        return Mean(nodes=tuple(one.node for one in told)) if told else None

    def _count(self, found: Divisor) -> Slice | None:
        """The count by what the script says; else by what the module that is trained holds once it is built."""
        changing = frozenset(self._set_later()) if self.notes else frozenset()
        for notes in (False, True) if self.notes else (False,):
            reach = Reach(barred=self.barred, given=self.given, notes=notes, changing=changing)
            try:
                return count(self.script, found, reach)
            except Gap:
                continue
        return None

    def _set_later(self) -> Iterator[str]:
        """The attributes of `self` that other methods set than those that build it."""
        methods = {one.name: one for owner in reversed(self.classes) for one in owner.body if isinstance(one, Function)}
        building, waiting = {"__init__", "setup", "configure_model"}, ["__init__", "setup", "configure_model"]
        while waiting:
            made = methods.get(waiting.pop())
            for node in walk(made) if made else ():
                name = dotted(node.func).removeprefix("self.") if isinstance(node, ast.Call) else ""
                if name in methods and name not in building:
                    building.add(name)
                    waiting.append(name)
        for name, each in methods.items():
            for node in walk(each) if name not in building else ():
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
                    yield node.attr

    def _block(self, statements: Sequence[ast.stmt], batch: tuple[str, ...], **more: object) -> Block:
        known: dict[str, Growth] = dict.fromkeys(batch, "rows")
        for statement in sorted(_inside(statements), key=lambda one: (one.lineno, one.col_offset)):
            self._reductions.give(statement, known)
        return Block(statements=statements, batch=batch, known=known, **more)  # type: ignore[arg-type]

    def _returned(self, function: Function, block: Block, depth: int) -> list[Divisor]:
        returns = [one for one in walk(function) if isinstance(one, ast.Return) and one.value is not None]
        each = [self._of(one.value, block, depth) for one in returns if one.value is not None]
        return list({one.written: one for found in each for one in found}.values())

    def _of(self, node: ast.expr, block: Block, depth: int) -> list[Divisor]:
        """The means in an expression."""
        if block.of_self and (found := self._labeled(node, block)):
            return [found]
        if isinstance(node, ast.Name):
            return [one for value in self._values(node, block) for one in self._of(value, block, depth)]
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Div):
                return self._divided(node, node.left, node.right, block, depth)
            return [*self._of(node.left, block, depth), *self._of(node.right, block, depth)]
        if isinstance(node, ast.Tuple) and node.elts:
            return self._of(node.elts[0], block, depth)
        if isinstance(node, ast.Dict):
            loss = [v for k, v in zip(node.keys, node.values, strict=True) if k is not None and constant(k) == "loss"]
            return [one for value in loss for one in self._of(value, block, depth)]
        if isinstance(node, ast.IfExp):
            return [*self._of(node.body, block, depth), *self._of(node.orelse, block, depth)]
        if isinstance(node, ast.Attribute) and node.attr == "loss" and self._grows(node, block) == "mean":
            return [Divisor(block, node)]
        if isinstance(node, ast.Call):
            return self._called(node, block, depth)
        return []

    def _labeled(self, node: ast.expr, block: Block) -> Divisor | None:
        """The loss of a model of transformers that the module holds, which is over the labels that it is given."""
        is_read = isinstance(node, ast.Subscript) and constant(node.slice) in (0, "loss")
        if not (is_read or (isinstance(node, ast.Attribute) and node.attr == "loss")):
            return None
        call = node.value  # type: ignore[attr-defined]
        if isinstance(call, ast.Name) and len(values := self._values(call, block)) == 1:
            call = values[0]
        return self._of_labels(node, call, block) if isinstance(call, ast.Call) else None

    def _of_labels(self, node: ast.expr, call: ast.Call, block: Block) -> Divisor | None:
        """The labels that a call gives to such a model, or to a method that returns what the model returns."""
        function = self._reductions.function(call)
        if function is not None:
            return self._through(node, call, function, block) if block.around is None else None
        makers = (one for one in self._reductions.makers(call.func) if isinstance(one, ast.Call))
        kind = of_transformers(" ".join(dotted(one.func) for one in makers))
        given = next((one.value for one in call.keywords if one.arg == "labels"), None)
        over, function_of = (given, kind) if given is not None else (_spread(call), f"{kind}_in")
        if kind == "samples" or over is None or not dotted(call.func).startswith("self."):
            return None
        return Divisor(block, node, over, function_of)

    def _through(self, node: ast.expr, call: ast.Call, function: Function, block: Block) -> Divisor | None:
        """The same through a method; one that is called with `**batch` gets the labels from it by their name."""
        inner = self._inner(call, function, block)
        returned = [one.value for one in walk(function) if isinstance(one, ast.Return)]
        values = self._values(returned[0], inner) if returned and isinstance(returned[0], ast.Name) else returned
        if len(returned) != 1 or len(values) != 1 or not isinstance(values[0], ast.Call):
            return None
        found = self._of_labels(node, values[0], inner)
        spread, name = _spread(call), dotted(found.over) if found and found.over is not None else ""
        every = function.args.kwarg.arg if function.args.kwarg else "labels"
        if found is None or spread is None or name not in ("labels", every):
            return found
        return Divisor(block, node, spread, f"{found.function.removesuffix('_in')}_in")

    def _called(self, call: ast.Call, block: Block, depth: int) -> list[Divisor]:
        last = dotted(call.func).rpartition(".")[2] or method(call)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        of_module = owner is None or dotted(owner).rpartition(".")[2] in ("torch", "F", "functional")
        subject = next(iter(call.args), None) if of_module else owner
        function = self._reductions.function(call)
        if function is not None:
            return self._of_function(call, function, block, depth) if depth < _DEPTH else []
        if last in ("div", "div_", "divide", "true_divide") and subject is not None:
            right = call.args[1:] if of_module else call.args
            return self._divided(call, subject, right[0], block, depth) if right else []
        if last in ("mean", "nanmean") and subject is not None and self._grows(call, block) == "mean":
            return [self._chosen(call, subject, block)]
        if (made := self._reductions.loss(call)) is not None:
            return self._loss(call, made, block) if self._grows(call, block) == "mean" else []
        every = [*call.args, *([owner] if owner is not None and not of_module else [])]
        return [one for part in every for one in self._of(part, block, depth)]

    def _divided(self, node: ast.expr, left: ast.expr, right: ast.expr, block: Block, depth: int) -> list[Divisor]:
        if self._grows(left, block) != "sum" or self._grows(right, block) == "fixed":
            return self._of(left, block, depth)
        over = plain(right)
        while isinstance(over, ast.Name) and len(values := self._values(over, block)) == 1:
            over = plain(values[0])
        if _is_number_of_samples(over):
            return [Divisor(block, node)]
        return [Divisor(block, node, over)]

    def _loss(self, call: ast.Call, made: ast.Call, block: Block) -> list[Divisor]:
        target = next((one.value for one in call.keywords if one.arg == "target"), None)
        target = target or next(iter(call.args[1:]), None)
        if target is None:
            return [Divisor(block, call)]
        if dotted(made.func).rpartition(".")[2] not in OF_LABELS:
            return [self._chosen(call, target, block)]
        ignored, weight = argument(made, "ignore_index", 4 if made is call else 2), class_weights(made)
        usual = ignored is None and weight is None
        name = dotted(call.func)
        held = name.removeprefix("self.") if block.of_self and made is not call and name.startswith("self.") else ""
        return [Divisor(block, call, target, LABELS, ignored, weight, usual, held)]

    def _chosen(self, node: ast.expr, subject: ast.expr, block: Block) -> Divisor:
        """A mean over what a mask chooses, or over all."""
        for value in self._values(subject, block) if isinstance(subject, ast.Name) else [subject]:
            for one in ast.walk(value):
                if isinstance(one, ast.Subscript) and self._is_mask(one.slice, block):
                    return Divisor(block, node, one.slice, NUMBERS)
                if isinstance(one, ast.Call) and dotted(one.func).endswith("masked_select") and one.args:
                    return Divisor(block, node, one.args[-1], NUMBERS)
        return Divisor(block, node)

    def _is_mask(self, index: ast.expr, block: Block) -> bool:
        return isinstance(index, ast.Name | ast.Compare | ast.Call | ast.UnaryOp | ast.BinOp | ast.Attribute) and (
            self._reductions.of(index, block.known) == "rows"
        )

    def _of_function(self, call: ast.Call, function: Function, block: Block, depth: int) -> list[Divisor]:
        """The means of a function of the script that the loss calls."""
        return self._returned(function, self._inner(call, function, block), depth + 1)

    def _inner(self, call: ast.Call, function: Function, block: Block) -> Block:
        batch = tuple(bound(function, call, block.known, self._reductions))
        own = any(one is function for owner in self.classes for one in owner.body)
        return self._block(flat(function.body), batch, call=call, function=function, around=block, of_self=own)

    def _grows(self, node: ast.expr, block: Block) -> Growth:
        """At its place: a name may hold something else later."""
        values = self._values(node, block) if isinstance(node, ast.Name) else []
        return self._grows(values[0], block) if len(values) == 1 else self._reductions.of(node, block.known)

    @staticmethod
    def _values(name: ast.Name, block: Block) -> list[ast.expr]:
        """What a name may hold at its place: from its last assignment that is certain."""
        found: list[ast.expr] = []
        certain = {id(one) for one in block.statements}
        for one in sorted(_inside(block.statements), key=lambda one: (one.lineno, one.col_offset)):
            if (one.end_lineno or one.lineno, one.end_col_offset or 0) > (name.lineno, name.col_offset):
                continue
            if isinstance(one, ast.Assign) and any(name.id in assigned_names(to) for to in one.targets):
                value = _same_place(one, name.id)
                found = [value] if id(one) in certain else [*found, value]
            elif isinstance(one, ast.AugAssign) and dotted(one.target) == name.id:
                joined = ast.copy_location(ast.BinOp(_held(one, name.id), one.op, one.value), one.value)
                found = [joined] if isinstance(one.op, ast.Div) else [*found, one.value]
        return found


def class_weights(call: ast.Call) -> ast.expr | None:
    """What a loss is given as weights of its classes."""
    name = dotted(call.func).rpartition(".")[2]
    return argument(call, "weight", 2 if name.islower() else 0) if name in OF_LABELS else None


def _inside(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    return (one for statement in statements for one in walk(statement) if isinstance(one, ast.stmt))


def _same_place(statement: ast.Assign, name: str) -> ast.expr:
    """What an assignment gives a name; of several to several, the one in the same place."""
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return next(v for t, v in zip(target.elts, value.elts, strict=True) if name in assigned_names(t))
    return value


def _held(statement: ast.AugAssign, name: str) -> ast.Name:
    """A name as it was before a statement changes it."""
    return ast.copy_location(ast.Name(name, ast.Load()), statement)


def _spread(call: ast.Call) -> ast.expr | None:
    """What a call unpacks into its arguments: `batch` of `**batch`."""
    return next((one.value for one in call.keywords if one.arg is None), None)


def _is_number_of_samples(node: ast.expr) -> bool:
    """Whether an expression is the number of rows: `len(x)`, `x.size(0)`, `x.shape[0]`."""
    if isinstance(node, ast.Call):
        return dotted(node.func) == "len" or (method(node) == "size" and [*map(constant, node.args)] == [0])
    return isinstance(node, ast.Subscript) and dotted(node.value).endswith(".shape") and constant(node.slice) == 0
