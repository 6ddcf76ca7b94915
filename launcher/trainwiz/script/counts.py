"""What a micro-batch counts for the mean of its loss, as code that needs the micro-batch alone."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainwiz.message import say
from trainwiz.script.reductions import Growth
from trainwiz.script.slices import NOTED, Gap, Slice, Slicer
from trainwiz.script.tree import Function, constant, dotted, method

if TYPE_CHECKING:
    from trainwiz.script import Script

LABELS, NUMBERS = "counted_labels", "counted_numbers"
"""Functions of a count: how many labels are not ignored, or what their classes weigh; how many a mask chooses."""
_WORDS = {
    "": "{over}",
    LABELS: LABELS + "({over}{ignored}{weight})",
    NUMBERS: NUMBERS + "({over})",
    "labels": LABELS + "({over})",
    "next_labels": LABELS + "(({over})[..., 1:])",
    "labels_in": LABELS + '({over}["labels"])',
    "next_labels_in": LABELS + '({over}["labels"][..., 1:])',
}
"""How what is summed or counted is written. The last four are of models of transformers, which ignore label -100."""
_PURE = frozenset(
    """
abs all any argmax bool clamp clamp_min clone contiguous cpu detach dim double eq expand expand_as flatten float ge
get gt index_select int item le len long logical_and logical_not lt masked_fill max min ne nelement numel ones_like
permute pop range repeat reshape shape size squeeze str sum t to transpose type unsqueeze view view_as where zeros_like
counted_labels counted_numbers device get of_module outside over
""".split()  # noqa: SIM905
)
"""Calls that may stand in a count: they change nothing, and give the same numbers whenever they are made."""
_OVER = "over"
_HELD = {"ignored": "ignore_index", "weight": "weight"}
"""The attributes in which a loss of torch keeps what it ignores, and the weights of the classes."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Statements that run once for each micro-batch: of the loop, or of a function that it calls."""

    statements: Sequence[ast.stmt]
    """In order."""
    batch: tuple[str, ...]
    """The names that hold parts of the micro-batch."""
    known: dict[str, Growth]
    """How its names grow with the micro-batch."""
    call: ast.Call | None = None
    """What calls the function; None for the outermost block."""
    function: Function | None = None
    """The function whose statements these are, if another block calls it."""
    around: Block | None = None
    """The block with the call."""
    of_self: bool = False
    """Whether it is in a method of the module that is trained."""

    @property
    def names(self) -> set[str]:
        """What has its value in the block."""
        return {*self.batch, *(_parameters(self.function) if self.function else ())}


@dataclass(frozen=True)
class Divisor:
    """What a mean divides by."""

    block: Block
    """Where it is."""
    node: ast.expr
    """The mean."""
    over: ast.expr | None = None
    """What is summed or counted; None: as many as there are samples, or nobody knows."""
    function: str = ""
    """The function of a count that makes a number of it; empty: it is one."""
    ignored: ast.expr | None = None
    """The label that does not count."""
    weight: ast.expr | None = None
    """The weights of the classes."""
    usual: bool = False
    """Whether it is over all labels, if none in the batch is ignored."""
    held: str = ""
    """The attribute of the module that holds the loss, which knows what it ignores and its weights."""

    @property
    def written(self) -> str:
        """What it divides by, as text; alike only where it is the same."""
        parts = [ast.unparse(one) if one else "" for one in (self.over, self.ignored, self.weight)]
        return " ".join([self.function, *parts, str(id(self.block.call))])


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a count may use beside the micro-batch."""

    barred: Sequence[str]
    """Names of the model and of the engine."""
    given: Mapping[int, str]
    """Texts in the place of nodes, by their identity."""
    notes: bool = False
    """Whether attributes of the module are read when it is built."""
    changing: Collection[str] = ()
    """Those that are set later, too."""


def count(script: Script, found: Divisor, reach: Reach) -> Slice:
    """The count of a micro-batch. Raises `Gap`."""
    assert found.over is not None
    slicer = _slicer(script, found.block, reach)
    held = found.held if reach.notes and found.held.partition(".")[0] not in reach.changing else ""
    given = (("ignored", found.ignored), ("weight", found.weight))
    more = {name: one for name, one in given if one is not None}
    noted = {name: f"{held}.{_HELD[name]}" for name in more} if held else {}
    for one in () if held else more.values():
        slicer.also(one)
    taken = slicer.of(found.over)
    texts = {name: f"{NOTED}({noted[name]!r})" if held else slicer.written(one) for name, one in more.items()}
    words = {name: f", {name}={texts[name]}" if name in texts else "" for name in _HELD}
    expression = _WORDS[found.function].format(over=taken.expression, **words)
    whole = replace(taken, expression=expression, noted=(*taken.noted, *noted.values()))
    _refuse(whole, found.over)
    block = found.block
    while block.around is not None:
        whole, block = _from_around(script, whole, block, reach), block.around
    return whole


def plain(divisor: ast.expr) -> ast.expr:
    """A divisor without what keeps it from being zero: a count of zero counts nothing."""
    while True:
        if isinstance(divisor, ast.Call) and method(divisor) in ("clamp", "clamp_min", "clamp_", "float", "item"):
            owner = divisor.func.value  # type: ignore[attr-defined]
            divisor = divisor.args[0] if dotted(owner) == "torch" and divisor.args else owner
        elif isinstance(divisor, ast.Call) and dotted(divisor.func) == "max" and len(divisor.args) == 2:
            one, other = divisor.args
            if _is_small(one) == _is_small(other):
                return divisor
            divisor = other if _is_small(one) else one
        elif isinstance(divisor, ast.BinOp) and isinstance(divisor.op, ast.Add) and _is_small(divisor.right):
            divisor = divisor.left
        else:
            return divisor


def _is_small(node: ast.expr) -> bool:
    value = constant(node)
    return isinstance(value, int | float) and value <= 1


def _slicer(script: Script, block: Block, reach: Reach, replaced: Mapping[int, str] | None = None) -> Slicer:
    return Slicer(
        script,
        bound=block.names,
        batch=block.names,
        barred=reach.barred,
        block=block.statements,
        replaced={**reach.given, **(replaced or {})},
        notes=reach.notes and block.of_self,
        changing=reach.changing,
    )


def _from_around(script: Script, inner: Slice, block: Block, reach: Reach) -> Slice:
    """A count in a function, called as the script calls the function; what it does not need is None. Raises `Gap`."""
    call, function, around = block.call, block.function, block.around
    assert call
    assert function
    assert around
    needed = _read(inner) & set(_parameters(function))
    if not needed <= {*block.batch, *_defaulted(function)}:
        raise Gap(call, say("it is not known what {name} is", name=", ".join(sorted(needed - {*block.batch}))))
    replaced = {id(value): "None" for name, value in pairs(function, call) if name not in needed}
    outer = _slicer(script, around, reach, {**replaced, id(call.func): _OVER}).of(call)
    body = "\n".join([*inner.inner, f"return {inner.expression}"])
    own = f"def {_OVER}({_signature(function)}):\n{textwrap.indent(body, '    ')}"
    _refuse(outer, call)
    return Slice(
        expression=outer.expression,
        inner=(own, *outer.inner),
        outer=tuple(dict.fromkeys((*inner.outer, *outer.outer))),
        from_outside=tuple(dict.fromkeys((*inner.from_outside, *outer.from_outside))),
        imports=tuple(dict.fromkeys((*inner.imports, *outer.imports))),
        options=(*inner.options, *outer.options),
        noted=tuple(dict.fromkeys((*inner.noted, *outer.noted))),
    )


def _read(taken: Slice) -> set[str]:
    nodes = (node for line in (*taken.inner, taken.expression) for node in ast.walk(ast.parse(line)))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _refuse(taken: Slice, at: ast.AST) -> None:
    """Raise `Gap` where a count would do more than compute: draw numbers, call functions, change the micro-batch."""
    for line in (*taken.inner, taken.expression):
        for node in ast.walk(ast.parse(line)):
            called = dotted(node.func).rpartition(".")[2] or method(node) if isinstance(node, ast.Call) else ""
            changes = isinstance(node, ast.AugAssign) or (
                isinstance(node, ast.Assign) and any(not _is_plain(target) for target in node.targets)
            )
            if (isinstance(node, ast.Call) and called not in _PURE) or changes:
                raise Gap(at, say("it is not known what {name} is", name=ast.unparse(node)))


def _is_plain(target: ast.expr) -> bool:
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return all(isinstance(one, ast.Name | ast.Starred) for one in parts)


def pairs(function: Function, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The parameters of a function with what a call gives them."""
    names = _parameters(function)
    yield from zip(names, call.args, strict=False)
    yield from ((one.arg or "", one.value) for one in call.keywords)


def _parameters(function: Function) -> list[str]:
    names = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
    return names[1:] if names[:1] == ["self"] else names


def _defaulted(function: Function) -> list[str]:
    """The parameters with a default that is written as a number or a word."""
    places = [*zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)]
    places += [(n, v) for n, v in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if v]
    return [one.arg for one, value in places if isinstance(value, ast.Constant | ast.UnaryOp)]


def _signature(function: Function) -> str:
    """Its parameters, with those defaults; others need none, since what is not needed is not read."""
    values = dict.fromkeys(_parameters(function), "None")
    places = [*zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)]
    places += [(n, v) for n, v in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if v]
    values |= {one.arg: ast.unparse(value) for one, value in places if isinstance(value, ast.Constant | ast.UnaryOp)}
    return ", ".join(f"{name}={value}" for name, value in values.items())
