"""One text's syntax tree, walked once: its nodes by kind in order, the way up, its calls, imports and bindings.

A module of a project is part of every script that imports it, so nothing here depends on the script: what a name means
there is asked of `Names`, which only looks up what these outlines hold.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

_LEAVES = {"id", "attr", "arg", "kind", "type_comment", "module", "level", "asname", "lineno", "type_ignores"}
"""Fields without nodes in every kind of node that has them."""
_SHARED = {"ctx", "op", "ops"}
"""Fields whose operators and the like are objects that nodes share; nobody asks for their parents."""
_POSITION = operator.attrgetter("lineno", "col_offset")
_ATTRIBUTES = operator.attrgetter("__dict__")
Found = TypeVar("Found")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_NAMING: tuple[type[ast.AST], ...] = (ast.Name, ast.Attribute, ast.alias)
"""Kinds of nodes that name something."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ENDS = frozenset((*SCOPES, ast.Module))
_ASSIGNING = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.AugAssign, ast.With)


class Assignment(NamedTuple):
    """A name that a statement gives a value. Of several targets, each is assigned the whole value."""

    name: str
    """The dotted name."""
    value: ast.expr
    """The value, or what it is unpacked from."""
    node: ast.AST
    """The statement."""
    alone: bool
    """Whether the whole value goes to this name, and is not unpacked into several."""
    scope: ast.AST
    """The function that it is in, or the module."""


# docs/decisions/files.md: What lint finds in one module is found once for all who import it
class Outline:
    """The statements of one module, indexed."""

    def __init__(self, module: ast.Module, left_out: Collection[ast.stmt] = ()) -> None:
        """`left_out` are statements of the module that do not count."""
        self.module = module
        self.kinds: dict[type[ast.AST], list[Any]] = defaultdict(list)
        self._plans: dict[type[ast.AST], tuple[Callable[[ast.AST], None], tuple[str, ...]]] = {}
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._kept: dict[Callable[[Outline], Any], Any] = {}
        self._like: dict[str, tuple[str, ...]] = {}
        self.making: dict[tuple[str, str], list[str]] = {}
        """What may make something, by the first part of its name and what a script imports as that."""
        self._ends: dict[ast.stmt, tuple[int, ...]] = {}
        counted = [self.kinds[kind] for kind in _NAMING]
        for statement in module.body:
            if statement not in left_out:
                statement._parent = module  # type: ignore[attr-defined]
                self._visit(statement)
                self._ends[statement] = tuple(map(len, counted))
        for node in self.kinds.get(ast.Yield, ()):
            for above in _around(node):
                above._yields = True  # type: ignore[attr-defined]
        for order, call in enumerate(self.kinds[ast.Call]):
            if not left_out or "_order" not in call.__dict__:
                call._order = order
            function = call.func
            kind = type(function)
            last = function.attr if kind is ast.Attribute else function.id if kind is ast.Name else ""
            self.calls[last].append(call)

    def _visit(self, node: ast.AST) -> None:
        kinds, waiting, kind_of_all = self.kinds, [node], ast.AST
        pop, push, plans = waiting.pop, waiting.append, self._plans
        following: ast.AST | None = None
        while following is not None or waiting:  # deeply nested expressions must not end in a RecursionError
            node = pop() if following is None else following
            following = None
            kind = node.__class__
            try:
                keep, names = plans[kind]
            except KeyError:
                keep, names = plans[kind] = kinds[kind].append, own_branches(kind)  # type: ignore[arg-type]
            keep(node)
            if not names:
                continue
            values = node.__dict__
            for name in names:
                value = values.get(name)
                if value.__class__ is list:
                    for one in reversed(value):
                        if isinstance(one, kind_of_all):
                            one._parent = node  # type: ignore[attr-defined]
                            if following is not None:
                                push(following)
                            following = one
                elif isinstance(value, kind_of_all):
                    value._parent = node  # type: ignore[attr-defined]
                    if following is not None:
                        push(following)
                    following = value

    def release(self) -> None:
        """Give up the tree at once: nodes that know their parents would wait for the garbage collector."""
        for kind, nodes in self.kinds.items():
            # A node without others in it is in no circle once those around it are empty.
            if own_branches(kind):  # type: ignore[arg-type]
                deque(map(dict.clear, map(_ATTRIBUTES, nodes)), maxlen=0)
        self._kept.clear()

    def of(self, *kinds: type[ast.AST]) -> list[Any]:
        """The nodes of these kinds, in order."""
        found = [group for kind in kinds if (group := self.kinds.get(kind))]
        return found[0] if len(found) == 1 else sorted(itertools.chain(*found), key=_POSITION)

    def once(self, find: Callable[[Outline], Found]) -> Found:
        """What a function finds in it; asked a second time, what it found the first time."""
        if find not in self._kept:
            self._kept[find] = find(self)
        kept: Found = self._kept[find]
        return kept

    def called_like(self, pattern: str) -> tuple[str, ...]:
        """The last names of its calls that are like this regular expression; found once."""
        if pattern not in self._like:
            self._like[pattern] = tuple(filter(re.compile(pattern).search, self.calls))
        return self._like[pattern]

    @cached_property
    def callees(self) -> dict[str, list[ast.Call]]:
        """Its calls by the whole dotted name of what is called; all that have none under the empty one."""
        found = defaultdict(list)
        for call in self.kinds[ast.Call]:
            found[dotted(call.func)].append(call)
        return found

    @cached_property
    def callees_by_first(self) -> dict[str, list[str]]:
        """The dotted names of what is called, by the part before the first dot."""
        found = defaultdict(list)
        for name in self.callees:
            found[name.partition(".")[0]].append(name)
        return found

    @cached_property
    def given(self) -> dict[str, list[ast.Call]]:
        """Its calls by the dotted names of their arguments: each once for each argument."""
        found = defaultdict(list)
        for call in self.kinds[ast.Call]:
            for value in (*call.args, *[keyword.value for keyword in call.keywords]):
                if name := dotted(value):
                    found[name].append(call)
        return found

    @cached_property
    def mentions(self) -> dict[str, list[ast.Name | ast.Attribute]]:
        """Its names and attributes, by their last name."""
        found: dict[str, list[ast.Name | ast.Attribute]] = defaultdict(list)
        for name in self.kinds[ast.Name]:
            found[name.id].append(name)
        for attribute, nodes in self.attributes.items():
            found[attribute] += nodes
        return found

    @cached_property
    def attributes(self) -> dict[str, list[ast.Attribute]]:
        """The attributes and methods that it uses, by name."""
        found = defaultdict(list)
        for attribute in self.kinds[ast.Attribute]:
            found[attribute.attr].append(attribute)
        return found

    @cached_property
    def keywords(self) -> dict[str | None, list[ast.keyword]]:
        """The keyword arguments of its calls by name."""
        found = defaultdict(list)
        for node in self.kinds[ast.keyword]:
            found[node.arg].append(node)
        return found

    @cached_property
    def given_on(self) -> frozenset[str]:
        """The names that are given what another name has, or a loader that only skips some of its batches."""
        return frozenset(name for name, group in self.bindings.items() if any(gives_on(one.value) for one in group))

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Its imports."""
        return self.of(ast.Import, ast.ImportFrom)

    @cached_property
    def defined(self) -> dict[str, list[Definition]]:
        """The functions and classes that the module defines, by name."""
        found = defaultdict(list)
        for statement in self.module.body:
            if isinstance(statement, DEFINITIONS):
                found[statement.name].append(statement)
        return found

    @cached_property
    def named_loosely(self) -> frozenset[str]:
        """What its statements name that define neither a function nor a class."""
        return frozenset().union(*(self.named(s) for s in self.module.body if not isinstance(s, DEFINITIONS)))

    def named(self, statement: ast.stmt) -> frozenset[str]:
        """The names, attributes and what is imported under another name in a statement of the module."""
        return self._named[statement]

    @cached_property
    def _named(self) -> dict[ast.stmt, frozenset[str]]:
        found, begins = {}, (0,) * len(_NAMING)
        for statement in self.module.body:
            if statement in self._ends:
                ends = self._ends[statement]
                groups = [self.kinds[kind][a:b] for kind, a, b in zip(_NAMING, begins, ends, strict=True)]
                begins = ends
            else:
                nodes = [*ast.walk(statement)]
                groups = [[node for node in nodes if type(node) is kind] for kind in _NAMING]
            names, attributes, imported = groups
            named = {node.id for node in names}
            named.update([node.attr for node in attributes])
            # `from models import Net` alone names nothing.
            named.update([node.name for node in imported if node.asname])
            found[statement] = frozenset(named)
        return found

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Its functions and methods."""
        return self.of(ast.FunctionDef, ast.AsyncFunctionDef)

    @cached_property
    def bindings(self) -> dict[str, list[Assignment]]:
        """What gives names a value, by name, in order."""
        found = defaultdict(list)
        for node in self.of(*_ASSIGNING):
            for binding in _bindings(node, self.module):
                found[binding.name].append(binding)
        return found

    @cached_property
    def by_function(self) -> dict[ast.AST, dict[str, list[Assignment]]]:
        """The same of its functions, by function and name."""
        found: dict[ast.AST, dict[str, list[Assignment]]] = defaultdict(lambda: defaultdict(list))
        for group in self.bindings.values():
            for one in group:
                if type(one.scope) is not ast.Module:
                    found[one.scope][one.name].append(one)
        return found

    @cached_property
    def bound(self) -> dict[ast.expr, list[Assignment]]:
        """The same by what the value is."""
        found = defaultdict(list)
        for group in self.bindings.values():
            for binding in group:
                found[binding.value].append(binding)
        return found


@functools.cache
def branches(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields in which nodes of a kind may have other nodes."""
    return () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _LEAVES)


@functools.cache
def own_branches(kind: type[ast.AST]) -> tuple[str, ...]:
    """Those from last to first, without what nodes share."""
    return tuple(name for name in reversed(branches(kind)) if name not in _SHARED)  # type: ignore[arg-type]


def scope(node: ast.AST) -> ast.AST:
    """The function that contains a node (a lambda counts), or its module."""
    known = node.__dict__
    above: ast.AST | None = known.get("_scope")
    if above is None:
        above = known.get("_parent")
        while above is not None and type(above) not in _ENDS:
            above = above.__dict__.get("_parent")
        known["_scope"] = above
    return above  # type: ignore[return-value]


def _around(node: ast.AST) -> Iterator[ast.AST]:
    """The functions around a node."""
    above = node.__dict__.get("_parent")
    while above is not None:
        if type(above) in SCOPES:
            yield above
        above = above.__dict__.get("_parent")


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; empty for anything else."""
    if type(node) is ast.Name:
        return node.id
    rest = ""
    while type(node) is ast.Attribute:
        rest = f".{node.attr}{rest}"
        node = node.value
    return node.id + rest if type(node) is ast.Name else ""


def gives_on(value: ast.expr) -> bool:
    """Whether a value is what a name has: `a = b`, `a = skip_first_batches(b, n)`."""
    return isinstance(value, ast.Name) or skipping(value) is not None


def skipping(value: ast.expr) -> ast.expr | None:
    """The loader that a call returns without its first batches."""
    skips = isinstance(value, ast.Call) and bool(value.args) and dotted(value.func).endswith("skip_first_batches")
    return value.args[0] if skips else None  # type: ignore[attr-defined]


def _bindings(node: ast.AST, module: ast.Module) -> Iterator[Assignment]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _bound(target, node.value, node)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
        yield from _bound(node.target, node.value, node)
    elif isinstance(node, ast.AugAssign):
        value = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        value._parent = module  # type: ignore[attr-defined]
        yield from _bound(node.target, value, node)
    elif isinstance(node, ast.With):
        for item in node.items:
            if item.optional_vars:
                yield from _bound(item.optional_vars, item.context_expr, node)


def _bound(target: ast.expr, value: ast.expr, node: ast.AST) -> Iterator[Assignment]:
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else None
    pairs = parts is not None and isinstance(value, ast.Tuple) and len(value.elts) == len(parts)
    for i, part in enumerate([target] if parts is None else parts):
        own = value.elts[i] if pairs else value  # type: ignore[attr-defined]
        if name := dotted(part):
            yield Assignment(name, own, node, parts is None or own is not value, scope(node))
