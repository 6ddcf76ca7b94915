"""Which functions and classes of a project's modules a script may come to, by their names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from trainwiz.script.tree import Tree, walk

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Liveness:
    """What a script may come to; all of it where it has no modules."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._found: set[ast.AST] | None = None

    def __contains__(self, node: ast.AST) -> bool:
        """Whether a node is the script's own, or in a function or class that something live names."""
        if self.tree.outline(node) == len(self.tree.outlines) - 1:
            return True
        tops = [a for a in (node, *self.tree.above(node)) if isinstance(a, _DEFINITIONS)]
        return not tops or tops[-1] in self._live

    @property
    def _live(self) -> set[ast.AST]:
        if self._found is None:
            self._found = set(self._all())
        return self._found

    def _all(self) -> Iterator[ast.AST]:
        """The definitions that live code names, and those that they name in turn."""
        *modules, script = (outline.module for outline in self.tree.outlines)
        known: dict[str, list[ast.stmt]] = {}
        loose: list[ast.AST] = [script]
        for statement in (s for module in modules for s in module.body):
            if isinstance(statement, _DEFINITIONS):
                known.setdefault(statement.name, []).append(statement)
            else:
                loose.append(statement)
        while loose:
            for name in _names(walk(loose.pop())):
                for one in known.pop(name, ()):
                    yield one
                    loose.append(one)


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name  # `from models import Net as Model`
