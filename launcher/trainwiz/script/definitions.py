"""The definitions of a script that trains on import: imports, functions, classes and constants can be used alone."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainwiz.script.names import parameters
from trainwiz.script.tree import Function, Tree, dotted, walk

_IMPORTS = (ast.Import, ast.ImportFrom)
_ASKS = """
torch.device torch.cuda.is_available torch.cuda.device_count torch.backends.mps.is_available torch.tensor
os.path.join os.path.dirname os.path.abspath os.path.expanduser os.getenv os.environ.get pathlib.Path Path
dict float frozenset int len list max min range round set sorted str sum tuple
""".split()  # noqa: SIM905
"""Calls that a constant may be made with: they compute or ask, and change nothing."""


@dataclass(frozen=True)
class Definitions:
    """The definitions of a module, and what else its statements give a value."""

    own: dict[str, ast.stmt]
    """Functions, classes and constants by name, which need nothing that the module computes."""
    made: frozenset[str]
    """Names that the module gives a value as it runs."""

    def missing(self, wanted: str) -> str:
        """What a definition uses, through others too, that the script makes as it runs; empty: nothing."""
        seen, waiting = set[str](), [wanted]
        while waiting:
            one = waiting.pop()
            for name in sorted(used(self.own[one])):
                if name in self.made:
                    return name
                if name in self.own and name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return ""


def definitions(tree: Tree) -> Definitions:
    """What a module defines."""
    body = [statement for statement in tree.module.body if not isinstance(statement, _IMPORTS)]
    names_of = {statement: given(statement) for statement in body}
    counts = Counter(name for names in names_of.values() for name in names)
    several = {name for name, count in counts.items() if count > 1}
    own = {
        name: statement
        for statement, names in names_of.items()
        if _is_definition(statement)
        for name in names - several
    }
    every = set(counts)
    # A default, a base class or a constant needs its names when the definition runs, not when it is used.
    needing: dict[str, list[str]] = {}
    for name, statement in own.items():
        for needed in _at_once(statement) & every:
            needing.setdefault(needed, []).append(name)
    waiting = list(every - own.keys())
    while waiting:
        late = [name for name in needing.get(waiting.pop(), ()) if name in own]
        for name in late:
            del own[name]
        waiting += late
    return Definitions(own, frozenset(every - own.keys()))


def _is_definition(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return True
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    calls = (node for node in walk(statement) if isinstance(node, ast.Call | ast.Await))
    return all(isinstance(call, ast.Call) and dotted(call.func) in _ASKS for call in calls)


def given(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a value."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    return {node.id for node in walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _at_once(statement: ast.stmt) -> set[str]:
    """The names that a statement needs as it runs, without those inside of its functions."""
    return {node.id for node in _outside_functions(statement) if isinstance(node, ast.Name)} - given(statement)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(node, Function | ast.Lambda):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _outside_functions(child)


def used(node: ast.AST) -> set[str]:
    """The names that a definition takes from its module, at any time."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    found = {name for child in ast.iter_child_nodes(node) for name in used(child)}
    if isinstance(node, Function | ast.Lambda):
        inside = list(ast.walk(node))
        declared = {name for one in inside if isinstance(one, ast.Global) for name in one.names}
        stored = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        return (found - parameters(node) - stored) | declared
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        targets = (one for part in node.generators for one in ast.walk(part.target))
        return found - {one.id for one in targets if isinstance(one, ast.Name)}
    return found
