"""Which conditions differ between ranks, and which functions only one rank runs."""

from __future__ import annotations

import ast
import itertools
import re

from trainwiz.engines.names import names
from trainwiz.script.names import Assignment, Names, parameters
from trainwiz.script.origins import Origins
from trainwiz.script.tree import Function, Guard, Tree, constant, dotted, walk, written

MAIN = names(
    """
    is_chief is_global_primary is_global_zero is_last_process is_local_main_process is_local_process_zero is_main
    is_main_node is_main_process is_main_rank is_master is_primary is_rank0 is_rank_0 is_rank_zero is_world_process_zero
    main_process master_process should_save
    """
)
_MAIN = re.compile(
    r"^(is_)?((global|local|world|node|dist|dp|data_parallel)_)*(main|master|chief|primary)(_(process|rank|node|proc))?$"
)
"""Other names for the same, such as is_local_master."""
RANKS = names(
    """
    data_parallel_rank ddp_local_rank ddp_rank dp_rank global_rank local_process_index local_rank proc_id process_index
    process_rank rank world_rank
    """
)
_RANK_CALLS = names("get_data_parallel_rank get_global_rank get_local_rank get_node_local_rank get_rank")
_DECORATORS = names(
    """
    main_process_only master_only on_last_process on_local_main_process on_local_process on_main_process on_process
    rank_zero_only
    """
)
STEMS = (
    *("rank", "master", "chief", "primary", "is_main", "main_process", "last_process", "local_process", "on_process"),
    *("is_world_process", "process_index", "proc_id", "procid", "global_zero", "writer", "should_save"),
)
"""One of them is in each name by which a condition differs between ranks, or a function belongs to one."""
_WRITER = re.compile(r"(^|[._])(log|tb|summary|tensorboard|train|event)?_?writer$")
"""What writes logs: only the main rank has one, the others None."""
_ALONE = re.compile(
    r"^not .*(is_initialized|is_available|distributed|ddp|multi_gpu)|world_size(\(\))? ((==|<=) 1|< 2)$|rank == -1$"
)
"""Conditions that hold where there is one process only."""
_RANK_TESTS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Gt, ast.Lt)
_MOST_SITES = 60
"""Calls of one function that are held against each other, each against all."""


class Ranks:
    """Conditions that hold on some ranks only."""

    def __init__(self, tree: Tree, names: Names, origins: Origins, differ: bool = True) -> None:
        """`differ` is whether a text of the program has one of `STEMS`; without, all ranks do the same."""
        self.tree, self.names, self.origins, self.differ = tree, names, origins, differ
        self._numbers: dict[tuple[str, ast.AST], bool] = {}
        self._asking: set[str] = set()
        self._deciding: set[str] = set()
        self._own_guards: dict[ast.AST, Guard | None] = {}
        self._single: dict[ast.AST, bool] = {}

    def runs_function(self, function: ast.AST) -> bool:
        """Whether only some ranks run a function: by its decorator, or because all its calls are reached by those."""
        if not self.differ or not isinstance(function, Function):
            return False
        if function not in self._single:
            self._decide(function)
        return self._single[function]

    def guard(self, node: ast.AST) -> Guard | None:
        """The condition that lets only some ranks get here, around the node or around all calls of its function."""
        own, function = self.own_guard(node), self.tree.scope(node)
        while own is None and isinstance(function, Function) and self.runs_function(function):
            sites = self._sites(function)
            if _is_marked(function) or not sites:
                break
            own, function = self.own_guard(sites[0]), self.tree.scope(sites[0])
        return own

    def is_single(self, node: ast.AST) -> bool:
        """Whether only some ranks get here, be it by a condition, by a decorator or by where the function is called."""
        return self.own_guard(node) is not None or self.runs_function(self.tree.scope(node))

    def own_guard(self, node: ast.AST) -> Guard | None:
        """The condition within the node's own function."""
        if not self.differ:
            return None
        if node not in self._own_guards:
            guards = self.tree.guards(node)
            self._own_guards[node] = (
                next((g for g in guards if not g.raised and self.differs(g.test, g.positive)), None) if guards else None
            )
        return self._own_guards[node]

    def differs(self, test: ast.expr, positive: bool) -> bool:
        """Whether the branch where the test is so is taken on some ranks, and never on the others."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            told = self.is_rank(test.operand) or self.holds_rank(test.operand)
            return told or self.differs(test.operand, not positive)
        if isinstance(test, ast.BoolOp):
            needs_all = isinstance(test.op, ast.And) != positive
            # `not is_initialized() or rank == 0`: without other ranks there is nothing to tell apart.
            known = [value for value in test.values if not needs_all or not _ALONE.search(written(value))]
            answers = [self.differs(value, positive) for value in known or test.values]
            return all(answers) if needs_all else any(answers)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            if isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Gt) and written(test.comparators[0]) == "-1":
                return False  # `local_rank != -1` is true on all ranks, or there is one process
            if isinstance(test.ops[0], ast.IsNot if positive else ast.Is) and constant(test.comparators[0]) is None:
                return _WRITER.search(dotted(test.left)) is not None or self._is_made_on_one(test.left)
            first = isinstance(test.ops[0], ast.LtE) and constant(test.comparators[0]) == 0  # `rank <= 0`
            tells = first or isinstance(test.ops[0], _RANK_TESTS)
            return tells and (self.is_rank(test.left) or self.holds_rank(test.left))
        return self.is_main(test)

    def _is_made_on_one(self, node: ast.expr) -> bool:
        """Whether a name gets its value on some ranks, and None on the others."""
        name = dotted(node)
        made = self.names.assigned(name, node) if name and name not in self._asking else []
        self._asking.add(name)
        empty = [a for a in made if isinstance(a.value, ast.Constant) and a.value.value is None]
        others = [a for a in made if a not in empty]
        answer = bool(empty and others) and all(self.own_guard(a.node) is not None for a in others)
        self._asking.discard(name)
        return answer

    def is_main(self, node: ast.AST) -> bool:
        """Whether this says that the rank is the main one."""
        name = dotted(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
        if name == "should_save" and dotted(node).rpartition(".")[0].rpartition(".")[2] in ("control", "state"):
            return False  # which says that it is time to save
        if name.removeprefix("get_") in MAIN or ("m" in name and name.startswith("is_") and _MAIN.match(name)):
            return True
        name = dotted(node)
        if not name or name in self._asking:
            return False
        values = [a.value for a in self.names.assigned(name, node) if a.alone]
        self._asking.add(name)  # `a = a or b` must not recurse forever
        answer = bool(values) and all(
            isinstance(value, ast.Compare | ast.BoolOp | ast.Attribute | ast.Call) and self.differs(value, True)
            for value in values
        )
        self._asking.discard(name)
        return answer

    def is_rank(self, node: ast.AST) -> bool:
        """Whether this is the number of the rank, over all machines or on one."""
        if isinstance(node, ast.Call):
            if dotted(node.func).rpartition(".")[2] in _RANK_CALLS:
                return True
            words = {constant(part) for argument in (*node.args, node.func) for part in walk(argument)}
            return not words.isdisjoint(("RANK", "LOCAL_RANK", "SLURM_PROCID"))
        name = dotted(node).rpartition(".")[2]
        if name.lower() in RANKS:
            return True
        word = constant(node.slice) if isinstance(node, ast.Subscript) else None
        return word == "RANK" or (word != "rank" and str(word).lower() in RANKS)  # config["rank"] may be LoRA's

    def holds_rank(self, node: ast.AST) -> bool:
        """Whether a name of any kind holds the number of the rank: by what it is assigned, or given by all calls."""
        name = dotted(node)
        if not name or not isinstance(node, ast.expr):
            return False
        key = name, self.tree.scope(node)
        if key not in self._numbers:
            self._numbers[key] = False  # `a = a or b` must not recurse forever
            self._numbers[key] = self._holds_rank(name, node)
        return self._numbers[key]

    def _holds_rank(self, name: str, node: ast.expr) -> bool:
        made = [a for a in self.names.assigned(name, node) if constant(a.value) is None]
        if made:
            return all(a.alone and self._is_number(a.value) for a in made)
        function = self.tree.scope(node)
        if not isinstance(function, Function) or name not in parameters(function):
            return False
        if self.origins.is_spawned(function):
            return name == next(iter(a.arg for a in function.args.args), "")
        given = self.origins.given(name, node)
        return bool(given) and all(self._is_number(value) for value in given)

    def _is_number(self, value: ast.expr) -> bool:
        """Whether a value is the number of the rank: `int(os.environ["RANK"])`, `dist.get_rank()`, a name for it."""
        if isinstance(value, ast.IfExp):
            return self._is_number(value.body) and constant(value.orelse) is not None
        return self.is_rank(value) or self.holds_rank(value)

    def mentions_rank(self, node: ast.AST) -> bool:
        """Whether the value is made from the rank's number."""
        return any(self.is_rank(part) or self.is_main(part) for part in self.names.feeding(node))

    def names_rank(self, path: ast.expr) -> bool:
        """Whether a path is made from the rank's number, and not only from values of what a rank computed or loaded."""
        waiting: list[ast.AST] = [path]
        seen: set[str] = set()
        while waiting:
            node = waiting.pop()
            if self.is_rank(node) or self.is_main(node):
                return True
            name = dotted(node)
            if name and name not in seen:
                seen.add(name)
                for a in self.names.assigned(name, node):  # of what is unpacked from a call, only what it returns
                    unpacked = isinstance(a.value, ast.Call) and not a.alone
                    waiting += self.origins.results(a) if unpacked else [a.value]
            key = constant(node.slice) if isinstance(node, ast.Subscript) else None
            if isinstance(key, str):  # of a dictionary, only this value
                entries = [a.value for a in self.names.assigned(dotted(node.value), node)]  # type: ignore[attr-defined]
                found = [e for e in entries if isinstance(e, ast.Dict)]
                pairs = [p for e in found for p in zip(e.keys, e.values, strict=True)]
                waiting += [value for k, value in pairs if k is not None and constant(k) == key]
            elif not isinstance(node, ast.Compare | ast.Dict):
                waiting += ast.iter_child_nodes(node)
        return False

    def decides(self, test: ast.AST) -> bool:
        """Whether a condition asks for the rank: itself, or by what its names were assigned under such a condition.

        A value that merely came from the rank, such as a loss computed on its device, does not make it one.
        """
        if self._asks_several(test):
            return False
        for node in walk(test):
            if self.is_rank(node) or self.is_main(node) or self.holds_rank(node):
                return True
            name = dotted(node)
            if name and name not in self._deciding:
                self._deciding.add(name)
                answer = any(self._is_decided(one) for one in self.names.assigned(name, node))
                self._deciding.discard(name)
                if answer:
                    return True
        return False

    def is_alone(self, guard: Guard) -> bool:
        """Whether a condition holds where there is one process only: `if ddp: … else: here`."""
        test = guard.test
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == guard.positive:
            return any(self.is_alone(Guard(value, guard.positive)) for value in test.values)
        known = [a.value for a in self.names.assigned(dotted(test), test)] if dotted(test) else []
        asked = [one for one in (test, *known) if isinstance(one, ast.expr) and self._asks_several(one)]
        return any(isinstance(one.ops[0], ast.NotEq) != guard.positive for one in asked if isinstance(one, ast.Compare))

    def _asks_several(self, test: ast.AST) -> bool:
        """Whether a condition asks for a rank at all: `int(os.environ.get("RANK", -1)) != -1`."""
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
            return False
        return written(test.comparators[0]) == "-1" and any(map(self.is_rank, walk(test.left)))

    def _is_decided(self, assigned: Assignment) -> bool:
        """Whether a name gets its value on some ranks only, or gets a condition on the rank."""
        if self.own_guard(assigned.node) is not None:
            return True
        if isinstance(assigned.value, ast.Call):
            return any(self.is_rank(node) or self.is_main(node) for node in walk(assigned.value))
        kinds = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.Name, ast.Attribute)
        return isinstance(assigned.value, kinds) and self.decides(assigned.value)

    def _decide(self, function: Function) -> None:
        """Find out whether only some ranks run a function, and those that lead to it."""
        leading: dict[ast.AST, set[ast.AST]] = {}
        waiting: list[ast.AST] = [function]
        while waiting:
            one = waiting.pop()
            if one in self._single or one in leading:
                continue
            sites = self._sites(one) if isinstance(one, Function) else []
            if not sites or _is_marked(one):
                self._single[one] = _is_marked(one)
            else:
                leading[one] = {self.tree.scope(site) for site in sites if self.own_guard(site) is None}
                waiting += leading[one]
        before = 0
        while len(leading) != before:
            before = len(leading)
            for one in [*reversed(leading)]:  # a function is after those that it leads to
                if all(map(self._single.get, leading[one])):
                    del leading[one]
                    self._single[one] = not self._is_shared(one)
        self._single.update(dict.fromkeys(leading, False))

    def _is_shared(self, function: ast.AST) -> bool:
        """Whether some ranks make one call of a function, and the others another one."""
        pairs = itertools.combinations(self._sites(function)[:_MOST_SITES], 2)
        return any(self.tree.exclusive(one, other) for one, other in pairs)

    def _sites(self, function: ast.AST) -> list[ast.Call]:
        """The calls of a function of a name of its own; none unless all that look like that surely are."""
        if not isinstance(function, Function) or function.name not in self.tree.called:
            return []
        if self.names.function(function.name) is None:
            return []
        sites = [site for site in self.tree.calls_of(function.name) if dotted(site.func)]
        own = (function.name, f"self.{function.name}")
        return sites if all(dotted(site.func) in own for site in sites) else []


def _is_marked(function: ast.AST) -> bool:
    """Whether a decorator says that a function belongs to one rank."""
    return isinstance(function, Function) and any(map(_is_mark, function.decorator_list))


def _is_mark(decorator: ast.expr) -> bool:
    name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name.rpartition(".")[2] in _DECORATORS
