"""Which engine trains, and what the script's objects are to it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from functools import cached_property

from trainwiz.script.liveness import Liveness
from trainwiz.script.names import RENAMED, Assignment, Names, parameters
from trainwiz.script.origins import Origins, argument
from trainwiz.script.outline import skipping
from trainwiz.script.tree import Function, Tree, constant, dotted, method

DEPTH = 5
"""How many names are followed from one to the next."""
_FLOWS = 3
"""Functions that hand a prepared thing to each other."""
_MADE_BY = {
    "accelerate.Accelerator": "Accelerator",
    "lightning.Fabric": "Fabric",
    "lightning.fabric.Fabric": "Fabric",
    "lightning_fabric.Fabric": "Fabric",
    "colossalai.booster.Booster": "Booster",
    "torch.nn.parallel.DistributedDataParallel": "Module",
    "torch.utils.data.DataLoader": "DataLoader",
    "torch.utils.data.DistributedSampler": "DistributedSampler",
    "evaluate.load": "Metric",
    "evaluate.combine": "Metric",
    "datasets.load_metric": "Metric",
    "torch.amp.GradScaler": "GradScaler",
}
_FABRICS = (
    *(name for name, kind in _MADE_BY.items() if kind == "Fabric"),
    *("lightning.lite.LightningLite", "lightning_lite.LightningLite", "pytorch_lightning.lite.LightningLite"),
)
"""What a class may derive from that sets up its models itself."""
BY_HAND = ("torch.distributed.fsdp.FullyShardedDataParallel", "torch.nn.parallel.DistributedDataParallel")
"""What wraps a model in plain torch."""
_WRAPS = ("deepspeed.initialize", *BY_HAND)
_SETS_UP = ("setup", "setup_module", "setup_dataloaders")
_PREPARES = ("prepare", "prepare_model", "boost")
_MOVES = ("to", "cuda", "train", "eval", "half", "float", "bfloat16", "requires_grad_")
"""Methods of a module that return it."""
_PREPARING = (*(name.rpartition(".")[2] for name in _WRAPS), *_SETS_UP, *_PREPARES)
_SCHEDULER = re.compile(r"torch\.optim\.lr_scheduler\.|(^|\.)get_([a-z]+_)*(scheduler|schedule(_with_\w+)?)$")
_TRAINER = re.compile(r"(^|\.)\w*Trainer$")
_NAMED = (
    ("Accelerator", re.compile(r"accelerator$")),
    ("Booster", re.compile(r"^booster$")),
    ("GradScaler", re.compile(r"^(\w+_|grad)?scaler$")),
    ("Fabric", re.compile(r"^fabric$")),
    ("Scheduler", re.compile(r"sched", re.IGNORECASE)),
    ("Optimizer", re.compile(r"^(\w*_)?(optim|optimizer|opt)(_\w+)?$", re.IGNORECASE)),
)


class Engines:
    """The engines in use, and the kinds of objects: `Accelerator`, `Module`, `Optimizer`, …"""

    def __init__(self, tree: Tree, names: Names, live: Liveness, origins: Origins) -> None:
        self.tree, self.names, self.live, self.origins = tree, names, live, origins
        self._kinds: dict[tuple[str, ast.AST, int], str] = {}
        self._classes: dict[str, str] = {}
        self.accelerate = names.imported("accelerate")
        self.deepspeed = names.imported("deepspeed")
        self.colossalai = names.imported("colossalai")
        self.ddp = self._calls("torch.nn.parallel.DistributedDataParallel") or self._calls(
            "torch.distributed.init_process_group"
        )
        self.fsdp = self._calls("torch.distributed.fsdp.FullyShardedDataParallel") or self._calls(
            "torch.distributed.fsdp.fully_shard"
        )
        self.lightning = names.imported("lightning") or names.imported("pytorch_lightning")
        self.fabric = any("fabric" in name.lower() or name == "lightning" for name in names.imports.values())
        self.prepared_names = {
            a.name
            for call in names.calls_of(*_PREPARING)
            for a in names.bound_to(_moved(tree, call))
            if self.prepares(a)
        }
        self._holders = set(self._holding())
        self._sharded: dict[str, list[ast.Call]] = {}
        for call in names.calls_of("fully_shard"):
            if names.resolved(call.func) == "torch.distributed.fsdp.fully_shard" and call.args:
                self._sharded.setdefault(dotted(call.args[0]), []).append(call)

    @property
    def distributed(self) -> bool:
        """Whether the script is written for several processes."""
        return self.accelerate or self.deepspeed or self.colossalai or self.ddp

    @property
    def several(self) -> bool:
        """Whether the script itself trains on several processes."""
        return self.ddp or self.fsdp or bool(self.prepared_names or self._holders)

    @property
    def prepares_any(self) -> bool:
        """Whether an engine wraps or shards anything."""
        return bool(self.prepared_names or self._sharded or self._holders)

    def kind(self, node: ast.AST) -> str:
        """What an expression is: by what made it, else by its name; empty if unknown."""
        return self._kind(node, DEPTH)

    def makes_optimizer(self, call: ast.Call) -> bool:
        """Whether a call makes an optimizer: one that is known, or what is given parameters and named as one."""
        if self.kind(call) == "Optimizer":
            return True
        named = any(self._of_name(one.name) == "Optimizer" for one in self.names.bound_to(call))
        return named and not self.names.function(dotted(call.func)) and any(map(_gives_parameters, _given(call)))

    def _kind(self, node: ast.AST, depth: int) -> str:
        if isinstance(node, ast.Call):
            return self._made(node)
        name = dotted(node)
        if not name or not depth:
            return ""
        if name == "self":
            return self._of_self(node)
        key = (name, self.tree.scope(node), depth)
        if key not in self._kinds:
            self._kinds[key] = self._of_known(name, node, depth)
        return self._kinds[key]

    def _of_self(self, node: ast.AST) -> str:
        """What the object of a method is: a Fabric, where its class derives from it."""
        if not self.fabric and not self.lightning:
            return ""
        kind = next((a for a in self.tree.above(node) if isinstance(a, ast.ClassDef)), None)
        bases = [self.names.resolved(base) for base in kind.bases] if kind is not None else []
        return "Fabric" if any(base in _FABRICS for base in bases) else ""

    def _of_known(self, name: str, node: ast.AST, depth: int) -> str:
        for assignment in reversed(self.names.assigned(name, node)):
            kind = self._of_assignment(assignment, depth - 1)
            if kind:
                return kind
        return self._annotated(name, node) or self._of_name(name) or self._handed(name, node, depth - 1)

    def _handed(self, name: str, node: ast.AST, depth: int) -> str:
        """What a parameter is to those who call its function, or what the function returns that makes the name."""
        if depth <= 0 or not self.deepspeed:
            return ""
        known = self.names.assigned(name, node)
        values = [v for a in known for v in self.origins.results(a)] if known else self.origins.given(name, node)
        return next((kind for value in values if (kind := self._kind(value, depth))), "")

    def _annotated(self, name: str, node: ast.AST) -> str:
        """What a parameter is said to be: `def save(trainer: transformers.Trainer)`."""
        scope = self.tree.scope(node)
        if not isinstance(scope, Function) or name not in parameters(scope):
            return ""
        arguments = (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)
        said = next((a.annotation for a in arguments if a.arg == name), None)
        kind = self.names.resolved(said) if said is not None and dotted(said) else ""
        return self._of_class(kind) if "." in kind else ""

    def is_prepared(self, node: ast.AST, depth: int = DEPTH) -> bool:
        """Whether an engine wrapped or sharded what the name holds at this line; `depth` names are followed."""
        if not self.prepares_any:
            return False
        name = dotted(node)
        if name and name.rpartition(".")[0] in self._holders:
            return True
        if not name or not depth or name not in self.perhaps_prepared:
            return False
        if any(self._is_after(call, node) for call in self._sharded.get(name, ())):
            return True
        latest = self.names.latest(name, node)
        if latest is not None and latest.scope is self.tree.scope(node):
            prepared = self.prepares(latest) or self._returns_prepared(latest, depth - 1)
            return prepared or self._still(latest, depth - 1) or self._in_other_branch(latest, node)
        known = self.names.assigned(name, node)
        if known:
            return any(self.prepares(a) or self._returns_prepared(a, depth - 1) for a in known)
        given = self.origins.given(name, node)
        if given and (name not in self.prepared_names or all(map(dotted, given))):
            return any(self.is_prepared(value, depth - 1) for value in given)
        # A parameter of the same name as something prepared elsewhere is taken to be that.
        return name in self.prepared_names and name in parameters(self.tree.scope(node))

    def _returns_prepared(self, assignment: Assignment, depth: int) -> bool:
        """Whether one of the project's own functions makes a name's value, and returns what it prepared."""
        return any(
            self.wraps(value) or (depth > 0 and self.is_prepared(value, depth))
            for value in self.origins.results(assignment)
        )

    def _holding(self) -> Iterator[str]:
        """The names of what holds prepared things: `models` of `models[k] = accelerator.prepare(models[k])`."""
        for call in self.names.calls_of(*_PREPARES):
            statement = self.tree.parent(call)
            targets = statement.targets if isinstance(statement, ast.Assign) and self.wraps(call) else []
            yield from (dotted(one.value) for one in targets if isinstance(one, ast.Subscript) and dotted(one.value))

    def _in_other_branch(self, latest: Assignment, node: ast.AST) -> bool:
        """Whether the name was prepared in a branch before that excludes the last one, and both lead to the node."""
        if not self.tree.guards(latest.node):
            return False
        return any(
            one is not latest
            and self.prepares(one)
            and self.tree.exclusive(one.node, latest.node)
            and not self.tree.exclusive(latest.node, node)
            for one in self.names.assigned(latest.name, node)
        )

    @cached_property
    def perhaps_prepared(self) -> frozenset[str]:
        """The names of what was prepared, sharded or given on, wherever it stands."""
        if not self.prepares_any:
            return frozenset()
        given_on = (outline.given_on for outline in self.tree.outlines)
        return self._flowing.union(self._sharded, *given_on)

    @cached_property
    def _flowing(self) -> frozenset[str]:
        """The names by which prepared things are known in the functions that get them, and where these return them."""
        found, fresh = set(self.prepared_names), set(self.prepared_names)
        for _ in range(_FLOWS):
            reached = {name for one in fresh for name in (*self._parameters_of(one), *self._results_of(one))}
            fresh = reached - found
            found |= fresh
            if not fresh:
                break
        return frozenset(found)

    def _parameters_of(self, name: str) -> Iterator[str]:
        for outline in self.tree.outlines:
            for call in outline.given.get(name, ()):
                function = self.origins.called(call)
                if function is not None:
                    yield from (p for p in parameters(function) if dotted(argument(function, p, call) or call) == name)

    def _results_of(self, name: str) -> Iterator[str]:
        for node in self.tree.mentions(name.rpartition(".")[2]):
            above = self.tree.parent(node)
            above = self.tree.parent(above) if isinstance(above, ast.Tuple) else above
            if isinstance(above, ast.Return) and dotted(node) == name:
                for site in self.origins.sites(self.tree.scope(node)):
                    yield from (one.name for one in self.names.bound_to(site))

    def _is_after(self, call: ast.Call, node: ast.AST) -> bool:
        """Whether a call that changes its argument in place ran before a node of the same function, or elsewhere."""
        here = self.tree.scope(call) is self.tree.scope(node)
        return not here or self.tree.is_before(call, node)

    def prepares(self, assignment: Assignment) -> bool:
        """Whether the assignment is what `prepare`, `initialize` or `boost` returned, or a DDP or FSDP."""
        return self.wraps(assignment.value)

    def wraps(self, call: ast.AST) -> bool:
        """Whether an expression is a call of `prepare`, `initialize` or `boost`, or makes a DDP or FSDP."""
        while isinstance(call, ast.Call) and method(call) in _MOVES and isinstance(call.func, ast.Attribute):
            call = call.func.value
        if not isinstance(call, ast.Call):
            return False
        name = self.names.resolved(call.func)
        if name in _WRAPS:
            return True
        if not isinstance(call.func, ast.Attribute):
            return False
        if method(call) in _SETS_UP:
            return self.kind(call.func.value) == "Fabric"
        if method(call) in _PREPARES:
            return self.kind(call.func.value) in ("Accelerator", "Booster")
        return False

    def _still(self, assignment: Assignment, depth: int) -> bool:
        """Whether a prepared thing was only given on: skip_first_batches, `a = b`."""
        value = assignment.value
        if (loader := skipping(value)) is not None:
            return self.is_prepared(loader, depth)
        if isinstance(value, ast.Subscript):  # `model = state["model"]`
            return constant(value.slice) == assignment.name and assignment.name in self.prepared_names
        if isinstance(value, ast.Name) and not assignment.alone:  # `generator, discriminator = models`
            given = value.id in parameters(assignment.scope)
            return given and assignment.name in self.prepared_names
        return isinstance(value, ast.Name) and value.id != assignment.name and self.is_prepared(value, depth)

    def _of_assignment(self, assignment: Assignment, depth: int) -> str:
        value = assignment.value
        if isinstance(value, ast.Call):
            function = self.names.resolved(value.func)
            if function == "deepspeed.initialize":
                return "" if self._is_not_first(assignment, value) else "DeepSpeedEngine"
            if assignment.alone:
                return self._made(value)
        if isinstance(value, ast.Name) and assignment.alone and value.id != assignment.name:
            return self._kind(value, depth)
        return ""

    def _is_not_first(self, assignment: Assignment, value: ast.Call) -> bool:
        node = assignment.node
        if not isinstance(node, ast.Assign) or node.value is not value:
            return True
        target = node.targets[0]
        return isinstance(target, ast.Tuple | ast.List) and dotted(target.elts[0]) != assignment.name

    def _made(self, call: ast.Call) -> str:
        return self.made_by(dotted(call.func))

    def made_by(self, function: str) -> str:
        """What a call of this dotted name makes; empty if unknown."""
        name = self.names.meant(function)
        if name not in self._classes:
            self._classes[name] = self._of_class(name)
        return self._classes[name]

    def _of_class(self, name: str) -> str:
        kind = _kind_of(name)
        if kind != "Trainer" or self.names.imported(name.partition(".")[0]):
            return kind
        own = next((one for one in self.tree.of(ast.ClassDef) if one.name == name), None)
        bases = [self.names.resolved(base) for base in own.bases] if own is not None else []
        return kind if any("." in base and self._of_class(base) == kind for base in bases) else ""

    # docs/decisions/files.md: Lint follows prepared objects by name
    def _of_name(self, name: str) -> str:
        last = name.rpartition(".")[2]
        if kind := _named(last):
            unknown = (kind == "Accelerator" and not self.accelerate) or (kind == "Fabric" and not self.fabric)
            return "" if unknown else kind
        if self.deepspeed and last in ("engine", "model_engine", "ds_engine"):
            return "DeepSpeedEngine"
        return ""

    def _calls(self, name: str) -> bool:
        calls = self.names.calls_of(name.rpartition(".")[2])
        return any(self.names.resolved(call.func) == name and call in self.live for call in calls)


def _moved(tree: Tree, call: ast.Call) -> ast.Call:
    """A call with the methods that return its own object: `DDP(model).to(device)`."""
    function = tree.parent(call)
    above = tree.parent(function) if isinstance(function, ast.Attribute) and function.attr in _MOVES else None
    return _moved(tree, above) if isinstance(above, ast.Call) and above.func is function else call


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _gives_parameters(node: ast.AST) -> bool:
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(method(call) in ("parameters", "named_parameters") for call in calls)


def may_make(name: str) -> bool:
    """Whether something of this name that nothing imports may make an object of a known kind."""
    return bool(_kind_of(name)) or name.startswith(RENAMED)


@functools.lru_cache(maxsize=50_000)
def _named(name: str) -> str:
    """What something of this name is; scripts share most of their names."""
    return next((kind for kind, pattern in _NAMED if pattern.search(name)), "")


@functools.lru_cache(maxsize=50_000)
def _kind_of(name: str) -> str:
    """What a class or a function of this full name makes; scripts share most of their names."""
    if name in _MADE_BY:
        return _MADE_BY[name]
    if name.startswith("accelerate.utils.") and name.endswith("Accelerator"):
        return "Accelerator"
    if _SCHEDULER.search(name):
        return "Scheduler"
    if name.startswith(("torch.optim.", "bitsandbytes.optim.", "deepspeed.ops.")):
        return "Optimizer"
    return "Trainer" if _TRAINER.search(name) else ""
