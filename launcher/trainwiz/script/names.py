"""What the names of a program mean: imports, assignments, and what feeds a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from trainwiz.script.outline import SCOPES, Assignment, Outline
from trainwiz.script.tree import Function, Tree, children, dotted, walk

__all__ = ["MODULE_ALIASES", "RENAMED", "Assignment", "Names", "parameters"]

MODULE_ALIASES = {
    "accelerate.accelerator": "accelerate",
    "torch.amp.grad_scaler": "torch.amp",
    "torch.cuda.amp": "torch.amp",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.distributed._shard.checkpoint": "torch.distributed.checkpoint",
    "torch.distributed._composable.fsdp": "torch.distributed.fsdp",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "torch.distributed.fsdp",
    "torch.nn.utils.clip_grad": "torch.nn.utils",
    "torch.nn.parallel.distributed": "torch.nn.parallel",
    "torch.optim.adam": "torch.optim",
    "torch.optim.adamw": "torch.optim",
    "torch.optim.sgd": "torch.optim",
    "torch.random": "torch",
    "torch.utils.data.dataloader": "torch.utils.data",
    "torch.utils.data.distributed": "torch.utils.data",
    "torch.utils.tensorboard.writer": "torch.utils.tensorboard",
    "tqdm.auto": "tqdm",
    "tqdm.autonotebook": "tqdm",
    "tqdm.notebook": "tqdm",
    "tqdm.std": "tqdm",
    "transformers.trainer_utils": "transformers",
}
"""Modules whose names are known by another one as well: everything is looked for by its public name."""
_NONE: frozenset[str] = frozenset()
RENAMED = tuple(f"{module}." for module in MODULE_ALIASES)
"""What names of these modules begin with."""


class Names:
    """Imports and assignments of one module."""

    def __init__(self, tree: Tree, own: Sequence[str] = ()) -> None:
        """`own` holds the names of the project's modules that the tree contains, in its order."""
        self.tree = tree
        self.own = {name: outline for outline, name in enumerate(own)}
        self.imports: dict[str, str] = {}
        self._assigned: dict[str, list[Assignment]] = {}
        self._resolved: dict[str, str] = {}
        self._of_module: dict[str, list[Assignment]] = {}
        for outline in tree.outlines:
            for bound, whole, known in outline.once(_imports):
                if known or whole in self.own or whole.rpartition(".")[0] in self.own:
                    self.imports[bound] = whole
        self._aliases: dict[str, list[str]] = {}
        for alias, whole in self.imports.items():
            last = whole.rpartition(".")[2]
            if last != alias:
                self._aliases.setdefault(last, []).append(alias)

    @property
    def assignments(self) -> dict[str, list[Assignment]]:
        """All assignments, by name."""
        names = dict.fromkeys(name for outline in self.tree.outlines for name in outline.bindings)
        return {name: self.all_of(name) for name in names}

    def all_of(self, name: str) -> list[Assignment]:
        """The assignments of a name anywhere, in order."""
        if name not in self._assigned:
            module, known = self.tree.module, [o.bindings[name] for o in self.tree.outlines if name in o.bindings]
            # Modules of one program count as one.
            self._assigned[name] = [
                one._replace(scope=module) if type(one.scope) is ast.Module and one.scope is not module else one
                for group in known
                for one in group
            ]
        return self._assigned[name]

    def bound_to(self, value: ast.expr) -> list[Assignment]:
        """The assignments of this very expression."""
        bindings = self.tree.outlines[self.tree.outline(value)].bound.get(value, ())
        return [a for b in bindings for a in self.all_of(b.name) if a.value is value]

    def calls_of(self, *lasts: str) -> list[ast.Call]:
        """The calls of what has one of these last names, in the script or where it is imported from."""
        return self.tree.calls_of(*lasts, *(alias for last in lasts for alias in self._aliases.get(last, ())))

    def calls_like(self, pattern: str) -> list[ast.Call]:
        """The same for last names like this regular expression."""
        like = {name for outline in self.tree.outlines for name in outline.called_like(pattern)}
        return self.calls_of(*like, *filter(re.compile(pattern).search, self._aliases))

    def resolved(self, node: ast.AST) -> str:
        """The dotted name with its first part replaced by what was imported under it."""
        return self.meant(dotted(node))

    def meant(self, name: str) -> str:
        """The same of a dotted name."""
        if name not in self._resolved:
            self._resolved[name] = self._looked_up(name)
        return self._resolved[name]

    def _looked_up(self, name: str) -> str:
        first, dot, rest = name.partition(".")
        whole = self.imports.get(first, first) + dot + rest
        if whole.startswith(RENAMED):
            for old, new in MODULE_ALIASES.items():
                if whole.startswith(old + "."):
                    whole = new + whole[len(old) :]
        module, _, last = whole.rpartition(".")
        # `model.train()` of a variable is not a function of the module `model`.
        return last if module in self.own and first in self.imports else whole

    def is_own(self, whole: str) -> bool:
        """Whether names that begin with this one may be of one of the project's modules."""
        return whole.partition(".")[0] in self._own_tops

    @cached_property
    def _own_tops(self) -> frozenset[str]:
        return frozenset(name.partition(".")[0] for name in self.own)

    def imported(self, package: str) -> bool:
        """Whether anything of this package is imported."""
        return any(name == package or name.startswith(package + ".") for name in self.imports.values())

    def assigned(self, name: str, at: ast.AST) -> list[Assignment]:
        """The name's assignments in the node's function, else in the functions around it, else in the module.

        An attribute (`self.x`) is looked for in the whole module.
        """
        if "." in name:
            return self.all_of(name)
        by_scope, scope, module = self._by_scope, self.tree.scope(at), self.tree.module
        while scope is not module:
            here = by_scope[scope].get(name) if scope in by_scope else None
            if here is not None or name in parameters(scope):
                return here or []
            scope = self.tree.scope(scope)
        if name not in self._of_module:
            self._of_module[name] = [one for one in self.all_of(name) if one.scope is module]
        return self._of_module[name]

    @cached_property
    def _by_scope(self) -> dict[ast.AST, dict[str, list[Assignment]]]:
        """The assignments in functions, by function and name."""
        found: dict[ast.AST, dict[str, list[Assignment]]] = {}
        for outline in self.tree.outlines:
            found.update(outline.by_function)
        return found

    def latest(self, name: str, at: ast.AST) -> Assignment | None:
        """The last assignment above the node, by line."""
        above = [a for a in self.assigned(name, at) if a.node is not at and not self.tree.is_before(at, a.node)]
        return above[-1] if above else None

    def feeding(
        self, value: ast.AST, at: ast.AST | None = None, past: Callable[[ast.AST], bool] | None = None
    ) -> Iterator[ast.AST]:
        """Every node of the expression and of all that is assigned to the names in it, whatever the order.

        What the nodes that are `past` it are made from does not count.
        """
        at = at or value
        seen: set[str] = set()
        waiting = [value]
        while waiting:
            nodes = walk(waiting.pop())
            for node in nodes if past is None else _before(nodes[0], past):
                yield node
                name = dotted(node) if isinstance(node, ast.Name | ast.Attribute) else ""
                if name and name not in seen and not (past is not None and past(node)):
                    seen.add(name)
                    waiting += [a.value for a in self.assigned(name, at)]

    def function(self, name: str, call: ast.Call | None = None) -> Function | None:
        """The only function of this name; of several, the one that a call can only mean."""
        found = self._functions.get(name, [])
        if len(found) > 1 and call is not None:
            found = self._meant(call.func, found)
        return found[0] if len(found) == 1 else None

    def _meant(self, called: ast.expr, found: list[Function]) -> list[Function]:
        """Those of a module itself: of the one that calls by a plain name, else of the one it is imported from."""
        whole = [one for one in found if self.tree.parent(one) is self.tree.module]
        if isinstance(called, ast.Name):
            here = self.tree.outline(called)
            if beside := [one for one in whole if self.tree.outline(one) == here]:
                return beside
            if len(whole) == 1 and self.imports.get(called.id, "").rpartition(".")[0] in self.own:
                return whole  # which a package gives on under this name
        first, dot, rest = dotted(called).partition(".")
        module = (self.imports.get(first, first) + dot + rest).rpartition(".")[0]
        return [one for one in whole if module in self.own and self.tree.outline(one) == self.own[module]]

    @cached_property
    def _functions(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for function in self.tree.functions:
            found.setdefault(function.name, []).append(function)
        return found


def _imports(outline: Outline) -> list[tuple[str, str, bool]]:
    """What imports bind, its whole name, and whether that is known; else it counts only as one of the own modules."""
    found = []
    for node in outline.imports:
        for alias in node.names:
            if isinstance(node, ast.Import):
                # `import a.b` binds `a`; `import a.b as c` binds all of it.
                bound = alias.asname or alias.name.partition(".")[0]
                found.append((bound, alias.name if alias.asname else bound, True))
            elif node.module and not node.level:
                module = MODULE_ALIASES.get(node.module, node.module)
                found.append((alias.asname or alias.name, f"{module}.{alias.name}", True))
            else:  # `from . import a`, `from .a import b`
                whole = f"{node.module}.{alias.name}" if node.module else alias.name
                found.append((alias.asname or alias.name, whole, False))
    return found


def _before(node: ast.AST, past: Callable[[ast.AST], bool]) -> Iterator[ast.AST]:
    """A node with those below it, but nothing below those that are `past` it."""
    yield node
    for child in children(node) if not past(node) else ():
        yield from _before(child, past)


def parameters(scope: ast.AST) -> frozenset[str]:
    """The parameters' names of a function, kept on its node; none of anything else."""
    if type(scope) not in SCOPES:
        return _NONE
    known: frozenset[str] | None = scope.__dict__.get("_parameters")
    if known is None:
        args = scope.args  # type: ignore[attr-defined]
        names = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        known = frozenset([argument.arg for argument in names if argument])
        scope._parameters = known  # type: ignore[attr-defined]
    return known
