"""The source of functions and classes, with everything that they use from the project's own modules.

It is part of the name of the tokenized data, so a change to other functions does not tokenize again.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Place = tuple[Path, str]  # a module, and a name in it


@functools.cache
def source_of(*roots: Any) -> list[tuple[str, str, str]]:
    """Return (module, name, source) of these functions and classes, and of all that they use, in order."""
    waiting = [(Path(inspect.getfile(root)), root.__qualname__) for root in roots]
    found: dict[Place, str] = {}
    while waiting:
        file, name = waiting.pop()
        if (file, name) not in found:
            module = read(file)
            found[file, name] = "\n".join(map(module.text, module.statements[name]))
            waiting += [(file, ""), *module.used(name)]
    return sorted((file.stem, name, text) for (file, name), text in found.items() if text)


class Module:
    """The statements of a file."""

    def __init__(self, file: Path) -> None:
        self.file, source = file, file.read_text()
        self.lines = source.splitlines()
        self.statements: dict[str, list[ast.stmt]] = defaultdict(list)
        """By the name that they define; those that define none, and may have any effect, are under the empty name."""
        self.imported: dict[str, tuple[Path, str]] = {}
        """Names imported from neighboring modules; for a whole module, the name there is empty."""
        tree = ast.parse(source)
        for statement in tree.body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                for name in defined(statement):
                    self.statements[name].append(statement)
        for node in ast.walk(tree):
            for origin, name, known_as in imports(node):
                if (neighbor := file.parent / f"{origin}.py").is_file():
                    self.imported[known_as] = neighbor, name

    def text(self, statement: Any) -> str:
        """Return the lines of a statement, with its decorators."""
        first = min([statement, *getattr(statement, "decorator_list", [])], key=lambda node: node.lineno)
        return "\n".join(self.lines[first.lineno - 1 : statement.end_lineno])

    def used(self, name: str) -> Iterator[Place]:
        """Yield where the names that a definition uses are defined, in this module or a neighbor."""
        for node in (node for statement in self.statements[name] for node in ast.walk(statement)):
            if isinstance(node, ast.Name):
                yield from self.resolved(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                neighbor, part = self.imported.get(node.value.id, (None, ""))
                if neighbor and not part:
                    yield from read(neighbor).resolved(node.attr)

    def resolved(self, name: str) -> Iterator[Place]:
        """Yield where a name of this module is defined; nothing for what comes from a library."""
        neighbor, part = self.imported.get(name, (None, ""))
        if neighbor and part:
            yield from read(neighbor).resolved(part)
        elif name in self.statements:
            yield self.file, name


def defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines; an empty one for any other statement."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets: list[Any] = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        targets = [part for t in targets for part in (t.elts if isinstance(t, ast.Tuple) else [t])]
        if all(isinstance(target, ast.Name) for target in targets):
            return [target.id for target in targets]
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return [] if is_text else [""]


def imports(node: ast.AST) -> list[tuple[str, str, str]]:
    """Return (module, name in it, name here) of what a statement imports; a whole module has no name in it."""
    if isinstance(node, ast.Import):
        return [(alias.name, "", alias.asname or alias.name) for alias in node.names]
    names = node.names if isinstance(node, ast.ImportFrom) else []
    return [(getattr(node, "module", None) or "", alias.name, alias.asname or alias.name) for alias in names]


@functools.cache
def read(file: Path) -> Module:
    """Return the statements of a file."""
    return Module(file)
