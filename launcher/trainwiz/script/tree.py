"""A program's syntax tree with the way up: scopes, loops, with-blocks, and the conditions around a node."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEAVES = {"id", "attr", "arg", "kind", "type_comment", "module", "level", "asname", "lineno", "type_ignores"}
"""Fields without nodes in every kind of node that has them."""
_SHARED = {"ctx", "op", "ops"}
"""Fields whose operators and the like are objects that nodes share; nobody asks for their parents."""
_WITHOUT_GRADIENT = ("no_grad", "inference_mode")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FRAMES = (*_SCOPES, ast.ClassDef)
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


def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """What `ast.walk` gives, kept on the node: rules walk the same functions and loops again and again."""
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
            found += getattr(one, name, ())
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """What `ast.iter_child_nodes` gives, in half of its time; operators and the like, which nodes share, are in it."""
    found: list[ast.AST] = []
    for name in _branches(type(node)):  # type: ignore[arg-type]
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


@functools.cache
def _branches(kind: type[ast.AST]) -> tuple[str, ...]:
    return () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _LEAVES)


@functools.cache
def _own_branches(kind: type[ast.AST]) -> tuple[str, ...]:
    """Those from last to first, without what nodes share."""
    return tuple(name for name in reversed(_branches(kind)) if name not in _SHARED)  # type: ignore[arg-type]


class Tree:
    """The nodes of a module in order, and their parents."""

    def __init__(self, module: ast.Module, lower: Mapping[ast.stmt, int] | None = None) -> None:
        """`lower` says by how many lines statements of the module lie below what they say; they are told."""
        self.module = module
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = [module]
        for statement in module.body:
            self.parents[statement] = module
            self._visit(statement, (lower or {}).get(statement, 0))
        self.functions = [node for node in self.nodes if isinstance(node, _FUNCTIONS)]
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]

    def _visit(self, node: ast.AST, lower: int) -> None:
        nodes, parents, waiting = self.nodes, self.parents, [node]
        while waiting:  # deeply nested expressions must not end in a RecursionError
            node = waiting.pop()
            nodes.append(node)
            values = node.__dict__
            if lower and "lineno" in values:
                values["lineno"] += lower
                values["end_lineno"] += lower
            for name in _own_branches(type(node)):  # type: ignore[arg-type]
                value = values.get(name)
                if isinstance(value, list):
                    for one in reversed(value):
                        if isinstance(one, ast.AST):
                            parents[one] = node
                            waiting.append(one)
                elif isinstance(value, ast.AST):
                    parents[value] = node
                    waiting.append(value)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node's ancestors up to the module, nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that contains a node (a lambda counts), or the module."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, _SCOPES):
            above = self.parents.get(above)
        return above or self.module

    def inside(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node's ancestors within its own function, nearest first."""
        for ancestor in self.above(node):
            if isinstance(ancestor, _FRAMES):
                return
            yield ancestor

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops whose body contains a node, innermost first; comprehensions do not count."""
        found: list[Loop] = []
        child, above = node, self.parents.get(node)
        while above is not None and not isinstance(above, _FRAMES):
            if isinstance(above, _LOOPS) and child in above.body:
                found.append(above)
            child, above = above, self.parents.get(above)
        return found

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

    def guards(self, node: ast.AST, *, within: ast.AST | None = None) -> list[Guard]:
        """The conditions around a node in its own function, innermost first, or only those inside `within`."""
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
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and child in block:
            before = block[: block.index(child)]
            return [Guard(s.test, False) for s in before if isinstance(s, ast.If) and not s.orelse and leaves(s.body)]
    return []


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a block never falls through to what follows it."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in _EXITS
    return isinstance(last, _LEAVING)


def is_main_guard(node: ast.AST) -> bool:
    """Whether a node is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


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
