"""A program's syntax tree with the way up: scopes, loops, with-blocks, and the conditions around a node."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from trainwiz.script.outline import SCOPES, Outline, branches, dotted, own_branches, scope

__all__ = ["Function", "Guard", "Loop", "Tree", "branches", "dotted"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Node = TypeVar("Node", bound=ast.AST)
Found = TypeVar("Found")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_WITHOUT_GRADIENT = ("no_grad", "inference_mode")
_FRAMES = (*SCOPES, ast.ClassDef)
_FRAME_ENDS = frozenset((*_FRAMES, ast.Module))
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields with statements, or with what holds those."""
_EXITS = {"exit", "quit", "sys.exit", "os._exit"}


@dataclass(frozen=True)
class Guard:
    """A condition that decides whether a node is reached."""

    test: ast.expr
    """The condition."""
    positive: bool
    """Whether it is true there, or false."""
    raised: bool = False
    """Whether the other branch only raises: what does so ends the job, and nobody waits for it."""


def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """What `ast.walk` gives, kept on the node: rules walk the same functions and loops again and again."""
    if not own_branches(type(node)):  # type: ignore[arg-type]
        return node, *children(node)
    below: tuple[ast.AST, ...] | None = node.__dict__.get("_below")
    if below is None:
        found = [node]
        for one in found:  # which grows meanwhile
            found += children(one)
        below = tuple(found)
        node._below = below  # type: ignore[attr-defined]
    return below


def statements(module: ast.Module) -> list[ast.AST]:
    """What `walk` gives, without expressions: a tenth of it."""
    found: list[ast.AST] = [module]
    for one in found:  # which grows meanwhile
        for name in _BLOCKS:
            if name in one.__dict__:
                found += one.__dict__[name]
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """What `ast.iter_child_nodes` gives, in half of its time; operators and the like, which nodes share, are in it."""
    found: list[ast.AST] = []
    kind_of_all, given = ast.AST, node.__dict__
    for name in branches(node.__class__):  # type: ignore[arg-type]
        value = given.get(name)
        if value.__class__ is list:
            for one in value:
                if isinstance(one, kind_of_all):
                    found.append(one)
        elif isinstance(value, kind_of_all):
            found.append(value)
    return found


class Tree:
    """The nodes of a script and the modules of its project in order, and their parents."""

    def __init__(self, outlines: Sequence[Outline], module: ast.Module | None = None) -> None:
        """`module` is the script with its modules as if they were written below each other."""
        self.outlines = outlines
        self.module = module or outlines[-1].module
        self._before = dict(zip((o.module for o in outlines), itertools.count(), strict=False))
        self._kinds: dict[type[ast.AST], list[Any]] = {}
        self._calls_of: dict[tuple[str, ...], list[ast.Call]] = {}

    def mentions(self, name: str) -> list[ast.Name | ast.Attribute]:
        """The names and attributes with this last name, by module."""
        return [node for outline in self.outlines for node in outline.mentions.get(name, ())]

    def of(self, kind: type[Node]) -> list[Node]:
        """The nodes of one kind."""
        if kind not in self._kinds:
            self._kinds[kind] = [node for outline in self.outlines for node in outline.kinds.get(kind, ())]
        return self._kinds[kind]

    def each(self, find: Callable[[Outline], Sequence[Found]]) -> list[Found]:
        """What a function finds in each of the outlines, which keep it for all scripts that import their modules."""
        return list(itertools.chain.from_iterable(outline.once(find) for outline in self.outlines))

    @property
    def calls(self) -> list[ast.Call]:
        """Its calls."""
        return self.of(ast.Call)

    def calls_of(self, *lasts: str) -> list[ast.Call]:
        """The calls of what is written with one of these last names: `step` of `optimizer.step()` and of `step()`."""
        if lasts not in self._calls_of:
            self._calls_of[lasts] = self._found_calls(lasts)
        return self._calls_of[lasts]

    def _found_calls(self, lasts: tuple[str, ...]) -> list[ast.Call]:
        found: list[ast.Call] = []
        if self.called.isdisjoint(lasts):
            return found
        lasts = tuple(last for last in dict.fromkeys(lasts) if last in self.called)
        for outline in self.outlines:
            groups = [group for last in lasts if (group := outline.calls.get(last))]
            found += groups[0] if len(groups) == 1 else sorted(itertools.chain(*groups), key=order)
        return found

    @cached_property
    def called(self) -> set[str]:
        """The last names of all calls."""
        return set().union(*(outline.calls for outline in self.outlines))

    @cached_property
    def functions(self) -> list[Function]:
        """Its functions and methods."""
        return [one for outline in self.outlines for one in outline.functions]

    def outline(self, node: ast.AST) -> int:
        """Which of the outlines holds a node, by its place among them."""
        above: ast.AST | None = node
        while above is not None and type(above) is not ast.Module:
            above = above.__dict__.get("_parent")
        return self._before.get(above, len(self.outlines) - 1)  # type: ignore[arg-type]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What a node is a part of; None for the module."""
        above: ast.AST | None = node.__dict__.get("_parent")
        return self.module if type(above) is ast.Module else above

    def position(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins: which of the outlines it is in, and its line there."""
        return self.outline(node), getattr(node, "lineno", 0)

    def is_before(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether a node begins on an earlier line than another."""
        return self.position(one) < self.position(other)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node's ancestors up to the module, nearest first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that contains a node (a lambda counts), or the module."""
        above = node.__dict__.get("_scope") or scope(node)
        return self.module if above is None or type(above) is ast.Module else above

    def inside(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node's ancestors within its own function, nearest first."""
        for ancestor in self.above(node):
            if isinstance(ancestor, _FRAMES):
                return
            yield ancestor

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops whose body contains a node, innermost first; comprehensions do not count."""
        found: list[Loop] = []
        child, above = node, node.__dict__.get("_parent")
        while above is not None and type(above) not in _FRAME_ENDS:
            if isinstance(above, _LOOPS) and child in above.body:
                found.append(above)
            child, above = above, above.__dict__.get("_parent")
        return found

    def calls_to(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.Call]:
        """The calls of a function of the script by its own name, or as a method of its own object."""
        return [one for one in self.calls if dotted(one.func) in (function.name, f"self.{function.name}")]

    def loops_around(self, node: ast.AST) -> list[Loop]:
        """The loops around a node, innermost first, and those around its function, where one place calls it."""
        found, scope = self.loops(node), self.scope(node)
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return found
        calls = self.calls_to(scope)
        inside = len(calls) == 1 and scope in (calls[0], *self.above(calls[0]))
        return found if len(calls) != 1 or inside else [*found, *self.loops_around(calls[0])]

    def without_gradient(self, node: ast.AST) -> bool:
        """Whether no_grad or inference_mode holds here, by a block or by the function's decorator."""
        scope = self.scope(node)
        heads: list[ast.expr] = [item.context_expr for block in self.withs(node) for item in block.items]
        heads += scope.decorator_list if isinstance(scope, ast.FunctionDef) else []
        names = (n.attr for head in heads for n in walk(head) if isinstance(n, ast.Attribute))
        # The innermost counts: enable_grad within no_grad computes gradients.
        return next((n != "enable_grad" for n in names if n == "enable_grad" or n in _WITHOUT_GRADIENT), False)

    def withs(self, node: ast.AST) -> list[ast.With]:
        """The with-blocks around a node, innermost first."""
        found = []
        child = node
        for ancestor in self.inside(node):
            if isinstance(ancestor, ast.With) and child in ancestor.body:
                found.append(ancestor)
            child = ancestor
        return found

    def guards(self, node: ast.AST, *, within: ast.AST | None = None) -> Sequence[Guard]:
        """The conditions around a node in its own function, innermost first, or only those inside `within`."""
        # What is outside of functions depends on the modules that run before it.
        if within is not None or self.scope(node) is self.module:
            return self._guards(node, within)
        known: Sequence[Guard] | None = node.__dict__.get("_guards")
        if known is None:
            known = node._guards = self._guards(node, None)  # type: ignore[attr-defined]
        return known

    def _guards(self, node: ast.AST, within: ast.AST | None) -> list[Guard]:
        found: list[Guard] = []
        child: ast.AST = node
        for ancestor in self.inside(node):
            found += _early_exits(ancestor, child)
            if ancestor is within:
                return found
            if isinstance(ancestor, ast.If) and child is not ancestor.test:
                found.append(Guard(ancestor.test, child in ancestor.body))
            elif isinstance(ancestor, ast.IfExp) and child is not ancestor.test:
                found.append(Guard(ancestor.test, child is ancestor.body))
            elif isinstance(ancestor, ast.BoolOp):
                before = ancestor.values[: ancestor.values.index(child)] if child in ancestor.values else []
                found += [Guard(value, isinstance(ancestor.op, ast.And)) for value in before]
            child = ancestor
        top = self.scope(node)
        found += _early_exits(top, child)
        return found

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement a node is part of."""
        return next((a for a in (node, *self.above(node)) if isinstance(a, ast.stmt)), None)

    def exclusive(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether the two are in different branches of one `if`, so that they never both run."""
        ones = {a: child for a, child in self._steps(one) if isinstance(a, ast.If | ast.IfExp)}
        for ancestor, child in self._steps(other):
            if ancestor in ones:
                return _branch(ancestor, child) != _branch(ancestor, ones[ancestor])
        return False

    def _steps(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        child = node
        for ancestor in self.inside(node):
            yield ancestor, child
            child = ancestor


def _branch(condition: ast.AST, child: ast.AST) -> str:
    if isinstance(condition, ast.If):
        return "else" if child in condition.orelse else "then"
    return "else" if isinstance(condition, ast.IfExp) and child is condition.orelse else "then"


def _early_exits(parent: ast.AST, child: ast.AST) -> list[Guard]:
    """What holds at `child` because an `if` before it in the same block leaves."""
    if not isinstance(child, ast.stmt):
        return []
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and child in block:
            before = block[: block.index(child)]
            exits = [s for s in before if isinstance(s, ast.If) and not s.orelse and leaves(s.body)]
            return [Guard(s.test, False, isinstance(s.body[-1], ast.Raise)) for s in exits]
    return []


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a block never falls through to what follows it."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return dotted(last.value.func) in _EXITS
    return isinstance(last, _LEAVING)


def unreachable(outline: Outline) -> list[tuple[int, int]]:
    """The first and last lines of what stands behind a raise or a return in its block."""
    found = []
    for node in (*outline.of(ast.Raise), *outline.of(ast.Return)):
        above = node.__dict__["_parent"]
        blocks = (getattr(above, name, None) for name in ("body", "orelse", "finalbody"))
        block = next((one for one in blocks if isinstance(one, list) and node in one), [node])
        if block[-1] is not node:
            found.append((block[block.index(node) + 1].lineno, block[-1].end_lineno or block[-1].lineno))
    return found


def is_main_guard(node: ast.AST) -> bool:
    """Whether a node is `if __name__ == "__main__":`; kept on the node, for every script that imports its module."""
    if not isinstance(node, ast.If):
        return False
    known: bool | None = node.__dict__.get("_is_main_guard")
    if known is None:
        known = node._is_main_guard = "__name__" in written(node.test)  # type: ignore[attr-defined]
    return known


def written(node: ast.AST) -> str:
    """What `ast.unparse` gives, kept on the node: conditions are asked about again and again."""
    known: str | None = node.__dict__.get("_written")
    if known is None:
        known = node._written = ast.unparse(node)  # type: ignore[attr-defined]
    return known


def order(call: ast.Call) -> int:
    """The place of a call among those of its outline."""
    order: int = call.__dict__["_order"]
    return order


def constant(node: ast.AST | None) -> Any:
    """The value of a literal; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def method(node: ast.AST) -> str:
    """`step` of `optimizer.step` and of `optimizer.step()`, whatever the optimizer is; empty for anything else."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else ""


def operates(node: ast.AST, *operators: type[ast.operator]) -> bool:
    """Whether a node is an operation of one of these kinds on two values."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, operators)


def opened(block: ast.With, name: str) -> list[ast.Call]:
    """The calls of a method that open a with-block: `with accelerator.accumulate(model):`."""
    calls = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
    return [call for call in calls if method(call) == name]
