"""Which functions and classes of a project's modules a script may reach, by their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.script.names import Names
from trainwiz.script.outline import DEFINITIONS, Definition, Outline, dotted
from trainwiz.script.tree import Tree, constant


class Liveness:
    """What a script may reach; everything if it has no modules."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self.tree, self.names = tree, names
        self._found: set[ast.AST] | None = None

    def __contains__(self, node: ast.AST) -> bool:
        """Whether a node is the script's own, or in a function or class that something live names."""
        if self.tree.outline(node) == len(self.tree.outlines) - 1:
            return True
        tops = [a for a in (node, *self.tree.above(node)) if isinstance(a, DEFINITIONS)]
        return not tops or tops[-1] in self._live

    @property
    def _live(self) -> set[ast.AST]:
        if self._found is None:
            self._found = set(self._all())
        return self._found

    def _all(self) -> Iterator[ast.AST]:
        """The definitions that live code names, and those that they name in turn."""
        *modules, script = self.tree.outlines
        names = script.named_loosely.union(
            *(script.named(one) for group in script.defined.values() for one in group),
            *(module.named_loosely for module in modules),
        )
        names |= self._looked_up().union(*(module.once(_registered) for module in modules))
        known = {name for module in modules for name in module.defined}
        while live := names & known:
            known -= live
            found = [(m, one) for m in modules for name in live for one in m.defined.get(name, ())]
            yield from (one for _, one in found)
            names = frozenset().union(*(module.named(one) for module, one in found))

    def _looked_up(self) -> frozenset[str]:
        """What a module defines whose classes are chosen as the script runs: `getattr(trainers, config.trainer)`."""
        found: set[str] = set()
        for outline in self.tree.outlines:
            for call in outline.calls.get("getattr", ()):
                whole = self.names.resolved(call.args[0]) if len(call.args) > 1 else ""
                if whole in self.names.own and constant(call.args[1]) is None:
                    found |= self.tree.outlines[self.names.own[whole]].defined.keys()
        return frozenset(found)


def _registered(outline: Outline) -> frozenset[str]:
    """What a decorator enters under a name by which it is chosen later: `@register_trainer("dpo")`."""
    return frozenset(
        name for name, group in outline.defined.items() if any(_is_registered(definition) for definition in group)
    )


def _is_registered(definition: Definition) -> bool:
    marks = (dotted(d.func if isinstance(d, ast.Call) else d) for d in definition.decorator_list)
    return any("register" in mark.rpartition(".")[2].lower() for mark in marks)
