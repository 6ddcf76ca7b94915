"""What the names of a program mean: imports, assignments, and what feeds a value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from trainwiz.script.tree import Function, Tree, dotted, walk

MODULE_ALIASES = {
    "accelerate.accelerator": "accelerate",
    "torch.amp.grad_scaler": "torch.amp",
    "torch.cuda.amp": "torch.amp",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.distributed._composable.fsdp": "torch.distributed.fsdp",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "torch.distributed.fsdp",
    "torch.nn.utils.clip_grad": "torch.nn.utils",
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
_IMPORTING = (ast.Import, ast.ImportFrom)
_ASSIGNING = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.AugAssign, ast.With)


@dataclass(frozen=True)
class Assignment:
    """A name that gets a value. Of several targets, each is assigned the whole value."""

    name: str
    """The dotted name."""
    value: ast.expr
    """The value, or what it is unpacked from."""
    node: ast.AST
    """The statement."""
    scope: ast.AST
    """The function or module that it is in."""
    alone: bool
    """Whether the whole value goes to this name, and is not unpacked into several."""


class Names:
    """Imports and assignments of one module."""

    def __init__(self, tree: Tree, own: frozenset[str] = frozenset()) -> None:
        """`own` holds the names of the project's modules that the tree contains."""
        self.tree = tree
        self.own = own
        self.imports: dict[str, str] = {}
        self.assignments: dict[str, list[Assignment]] = {}
        self._resolved: dict[str, str] = {}
        self._by_scope: dict[tuple[str, ast.AST], list[Assignment]] = {}
        self._functions: dict[str, list[Function]] = {}
        for function in tree.functions:
            self._functions.setdefault(function.name, []).append(function)
        for node in tree.nodes:
            if isinstance(node, _IMPORTING):
                self._import(node)
            elif isinstance(node, _ASSIGNING):
                self._assign(node)

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds `a`; `import a.b as c` binds all of it.
                bound = alias.asname or alias.name.partition(".")[0]
                self.imports[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = MODULE_ALIASES.get(node.module, node.module)
            for alias in node.names:
                self.imports[alias.asname or alias.name] = f"{module}.{alias.name}"

    def _assign(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, node)
        elif (isinstance(node, ast.AnnAssign) and node.value) or isinstance(node, ast.NamedExpr):
            self._bind(node.target, node.value, node)  # type: ignore[arg-type]
        elif isinstance(node, ast.AugAssign):
            value = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
            self._bind(node.target, value, node)
        elif isinstance(node, ast.With):
            for item in node.items:
                if item.optional_vars:
                    self._bind(item.optional_vars, item.context_expr, node)

    def _bind(self, target: ast.expr, value: ast.expr, node: ast.AST) -> None:
        many = isinstance(target, ast.Tuple | ast.List)
        for i, part in enumerate(target.elts if isinstance(target, ast.Tuple | ast.List) else [target]):
            own = value
            pairs = isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple | ast.List)
            if many and pairs and len(value.elts) == len(target.elts):  # type: ignore[attr-defined]
                own = value.elts[i]  # type: ignore[attr-defined]
            if name := dotted(part):
                new = Assignment(name, own, node, self.tree.scope(node), not many or own is not value)
                self.assignments.setdefault(name, []).append(new)
                self._by_scope.setdefault((name, new.scope), []).append(new)

    def resolved(self, node: ast.AST) -> str:
        """The dotted name with its first part replaced by what was imported under it."""
        name = dotted(node)
        if name not in self._resolved:
            self._resolved[name] = self._looked_up(name)
        return self._resolved[name]

    def _looked_up(self, name: str) -> str:
        first, dot, rest = name.partition(".")
        whole = self.imports.get(first, first) + dot + rest
        for old, new in MODULE_ALIASES.items():
            if whole.startswith(old + "."):
                whole = new + whole[len(old) :]
        module, _, last = whole.rpartition(".")
        return last if module in self.own else whole

    def imported(self, package: str) -> bool:
        """Whether anything of this package is imported."""
        return any(name == package or name.startswith(package + ".") for name in self.imports.values())

    def assigned(self, name: str, at: ast.AST) -> list[Assignment]:
        """The name's assignments in the node's function, else in the functions around it, else in the module.

        An attribute (`self.x`) is looked for in the whole module.
        """
        known = self.assignments.get(name, [])
        if "." in name or not known:
            return known
        scope: ast.AST | None = self.tree.scope(at)
        while scope is not None:
            here = self._by_scope.get((name, scope), [])
            if here or name in parameters(scope):
                return here
            scope = None if scope is self.tree.module else self.tree.scope(scope)
        return []

    def latest(self, name: str, at: ast.AST) -> Assignment | None:
        """The last assignment above the node, by line."""
        line = getattr(at, "lineno", 0)
        above = [a for a in self.assigned(name, at) if getattr(a.node, "lineno", 0) <= line and a.node is not at]
        return above[-1] if above else None

    def feeding(self, value: ast.AST, at: ast.AST | None = None) -> Iterator[ast.AST]:
        """Every node of the expression and of all that is assigned to the names in it, whatever the order."""
        at = at or value
        seen: set[str] = set()
        waiting = [value]
        while waiting:
            for node in walk(waiting.pop()):
                yield node
                name = dotted(node) if isinstance(node, ast.Name | ast.Attribute) else ""
                if name and name not in seen:
                    seen.add(name)
                    waiting += [a.value for a in self.assigned(name, at)]

    def function(self, name: str) -> Function | None:
        """The module's only function of this name."""
        found = self._functions.get(name, ())
        return found[0] if len(found) == 1 else None


def parameters(scope: ast.AST) -> set[str]:
    """The parameters' names of a function; none of anything else."""
    if not isinstance(scope, Function | ast.Lambda):
        return set()
    names = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs, scope.args.vararg, scope.args.kwarg]
    return {argument.arg for argument in names if argument}
