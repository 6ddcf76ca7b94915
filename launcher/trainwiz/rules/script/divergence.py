"""Calls that all ranks must make together, but that only some of them reach."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from trainwiz.engines.names import names
from trainwiz.finding import Fix, Level, Violation, Violations, remedy, violation
from trainwiz.message import Message, say
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.names import parameters
from trainwiz.script.origins import argument
from trainwiz.script.training import describe
from trainwiz.script.tree import Function, Guard, constant, dotted, walk, written

_DIST = names(
    """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list gather gather_object monitored_barrier new_group reduce reduce_scatter reduce_scatter_tensor
    scatter scatter_object_list
    """
)
_ACCELERATOR = ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes", "backward")
_UTILS = ("gather", "gather_object", "broadcast", "broadcast_object_list", "reduce", "wait_for_everyone")
COLLECTIVES = {
    *(f"torch.distributed.{name}" for name in _DIST),
    *(f"Accelerator.{name}" for name in _ACCELERATOR),
    *(f"accelerate.utils.{name}" for name in _UTILS),
    "DeepSpeedEngine.backward",
    "DeepSpeedEngine.step",
    "Booster.backward",
    "DistCoordinator.block_all",
    *(f"Fabric.{name}" for name in ("all_gather", "all_reduce", "barrier", "broadcast")),
    "deepspeed.zero.GatheredParameters",
    "self.all_gather",
    "self.trainer.strategy.barrier",
    "trainer.strategy.barrier",
}
SAVES = {
    "Accelerator.save_state",
    "Accelerator.load_state",
    "DeepSpeedEngine.save_checkpoint",
    "DeepSpeedEngine.load_checkpoint",
    "DeepSpeedEngine.save_16bit_model",
    "Booster.save_model",
    "Booster.save_optimizer",
    "Booster.load_model",
    "Booster.load_optimizer",
    "Fabric.save",
    "Fabric.load",
}
_ENGINE_SAVES = (
    *("save_checkpoint", "load_checkpoint", "save_16bit_model"),
    *("_zero3_consolidated_16bit_state_dict", "_consolidated_16bit_state_dict"),
)
_BACK_ENDS = re.compile(r"deepspeed|zero|fsdp|shard|engine|back_?end|strategy|stage|scaler", re.IGNORECASE)
"""In a condition that asks which engine trains."""
_SHARDED = re.compile(r"\bds_(id|status|shape|numel)\b")
"""In a condition that asks whether ZeRO 3 shards a weight, which it does on all ranks alike."""
_DEEP = 3
"""Functions that call each other, down to the one that needs all ranks."""
_SEVERAL = re.compile(r"distributed|ddp|multi_?(gpu|process)|world_size|n(um)?_gpus|is_dist", re.IGNORECASE)
"""In the names of parameters that say whether there are several ranks at all."""
_UNKNOWN = r"^all_?(reduce|gather)(_\w+)?$"
"""Names of collectives, whoever's they are."""
_EVALUATES = re.compile(r"^(inference|evaluate|validate|predict)(_on_\w+|_dataset|_loop)?$")
"""Functions of other packages that go through a data set with a model."""
_SETTINGS = re.compile(r"^(args|cfg|config|conf|flags|hparams|opts?)$")
"""Names of parameters that are the same in each call."""
_RUNNING = ("generate", "forward")
"""Methods of a model that run it."""
_FORWARD = re.compile(rf"\.({'|'.join(_RUNNING)})$")
_TRAINER = {"Trainer.train", "Trainer.evaluate", "Trainer.predict"}


@rule("TW701", level=Level.ERROR, field="script")
def collectives_on_every_rank(script: Script) -> Violations:
    """Collectives must be called on all ranks, not under is_main_process.

    Without it: the ranks that call it wait for the others for 10 to 30 minutes; meanwhile the GPUs show 100 % use.
    Why: gather, reduce, broadcast, barrier and wait_for_everyone return only when every rank has called them.
    Instead: call it on every rank, and put only what follows (print, log, write) under the condition.
    Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution, huggingface/accelerate issue
    1171
    """
    if not script.ranks.differ:
        return
    synced = [c for c in script.calls_with("sync_dist") if script.engines.lightning and _is_synced(c)]
    synced += [c for c in script.calls_like(_UNKNOWN) if _is_unknown(script, c)]
    for call in [*script.called(*COLLECTIVES), *synced]:
        if script.ranks.is_single(call.node) and not _is_in_group(script, call) and not _answered(script, call):
            yield from _single(
                script,
                call,
                say("call {name} on every rank, outside the condition", name=dotted(call.node.func) or call.name),
            )
    yield from in_functions(script, script.called(*COLLECTIVES))


@rule("TW702", level=Level.ERROR, field="script")
def states_saved_by_every_rank(script: Script) -> Violations:
    """All ranks must take part in saving and loading the training state.

    Without it: under DeepSpeed and FSDP, the main process waits until the timeout for shards that no rank sends;
    under DDP, the random states of the other ranks are missing, and the resumed run differs.
    Why: save_state, save_checkpoint and Booster.save_model write one part per rank, and synchronize.
    Instead: call it on every rank; it decides by itself which rank writes what.
    Source: huggingface/accelerate issue 1171; https://www.deepspeed.ai/getting-started/ (all processes must call
    this)
    """
    if not script.ranks.differ:
        return
    own = [c for c in script.methods(*_ENGINE_SAVES) if c.name not in SAVES and _is_of_prepared(script, c)]
    own += script.methods("consolidate_state_dict")  # ZeroRedundancyOptimizer's
    saves = [c for c in script.called(*SAVES) if not _is_of_lite(script, c)]
    for call in [*saves, *own]:
        yield from _single(
            script, call, say("call {name} on every rank; each rank writes its own part", name=dotted(call.node.func))
        )
    yield from in_functions(script, [*saves, *own])
    yield from in_branches(script, [*saves, *own])


@rule("TW703", level=Level.ERROR, field="script")
def prepared_models_learn_on_every_rank(script: Script) -> Violations:
    """The forward pass of a prepared model must run on all ranks.

    Without it: ZeRO 3 and FSDP gather each layer's parameters from all ranks, and wait forever; DDP waits for the
    gradients of the other ranks in the backward pass, and for their buffers before the next forward pass.
    Why: prepare, deepspeed.initialize, boost and DistributedDataParallel return a wrapped model, not the bare one.
    Instead: run it on all ranks; or get the bare model with accelerator.unwrap_model(model) (model.module under
    DDP). This only helps if each rank has all weights, which is not the case under ZeRO 3 and FSDP.
    Source: torch DistributedDataParallel, `_pre_forward`; https://deepspeed.readthedocs.io/en/latest/zero3.html
    """
    for call in script.once(_forwards) if script.ranks.differ else ():
        single = script.ranks.is_single(call.node)
        if single and not _learns_nothing(script, call.node) and not _answered(script, call):
            yield from _single(
                script,
                call,
                say("run {name} on every rank, or use the unwrapped model under DDP", name=dotted(call.node.func)),
            )


@rule("TW704", level=Level.WARNING, field="script")
def evaluation_uses_every_rank(script: Script) -> Violations:
    """All ranks must take part in evaluation.

    Without it: the other ranks run ahead to the next collective and wait there; after 10 to 30 minutes NCCL ends
    the job. A prepared loader gives the main process only its share: the score covers only 1/N of the data. ZeRO 3
    and FSDP hang at the first layer, DDP hangs if the model has buffers. Even if it works, N - 1 GPUs are idle.
    Why: evaluation under is_main_process is a habit from training on one GPU.
    Instead: evaluate on every rank, combine with accelerator.gather_for_metrics, and print on the main process.
    Source: https://huggingface.co/docs/accelerate/quicktour (distributed evaluation)
    """
    if not script.ranks.differ:
        return
    seen: set[ast.AST] = set()
    for call in script.once(_forwards):
        around = (*script.tree.loops(call.node), *script.tree.withs(call.node), script.tree.scope(call.node))[0]
        if _learns_nothing(script, call.node) and around not in seen and not _is_handed(script, call):
            seen.add(around)
            yield from _single(script, call, say("evaluate on every rank and gather the results"))
    for call in script.called(*_TRAINER):
        yield from _single(
            script, call, say("call it on every rank; the Trainer itself prints and writes on one rank only")
        )
    for call in script.calls_given(script.engines.perhaps_prepared):
        if _runs_prepared(script, call):
            yield from _single(script, call, say("evaluate on every rank and gather the results"))


def _is_unknown(script: Script, call: Call) -> bool:
    """Whether a function of another package is called by the name of a collective: `misc.all_reduce_mean(loss)`."""
    own = script.origins.called(call.node) is not None or script.origins.kind(call.last) is not None
    torchs = call.name.startswith(("torch.", "self."))
    return call.name not in COLLECTIVES and not own and not torchs and script.names.function(call.last) is None


def _is_synced(call: Call) -> bool:
    """Whether a LightningModule's own log averages a number over all ranks."""
    return dotted(call.node.func) in ("self.log", "self.log_dict") and constant(call.keyword("sync_dist")) is True


def _is_of_lite(script: Script, call: Call) -> bool:
    """Whether a class of LightningLite's saves, which writes on one rank without a barrier."""
    kind = next((a for a in script.tree.above(call.node) if isinstance(a, ast.ClassDef)), None)
    bases = [dotted(base) for base in kind.bases] if kind is not None else []
    return dotted(call.node.func).startswith("self.") and any(base.endswith("LightningLite") for base in bases)


def _is_of_prepared(script: Script, call: Call) -> bool:
    """Whether a method is that of a model that may be DeepSpeed's engine, since it was prepared."""
    if not isinstance(call.node.func, ast.Attribute):
        return False
    owner = dotted(call.node.func.value)
    if call.keyword("client_state") is not None:  # which only DeepSpeed's engine knows
        return True
    # transformers' Trainer keeps the engine as self.deepspeed.
    named = owner.startswith("self.") and owner.endswith(("deepspeed", "model_engine", "ds_engine"))
    return named or script.engines.is_prepared(call.node.func.value)


def _forwards(script: Script) -> list[Call]:
    """The forward passes of prepared models."""
    found = []
    known = script.engines.perhaps_prepared
    spelled = {name for name in known if _FORWARD.sub("", name) in known}
    spelled.update(f"{name}.{method}" for name in known for method in _RUNNING)
    for call in script.calls_named(spelled):
        function: ast.AST = call.node.func
        if isinstance(function, ast.Attribute) and _FORWARD.fullmatch(f".{function.attr}"):
            function = function.value
        bare = any(not g.positive and "module" in written(g.test) for g in script.tree.guards(call.node))
        if script.engines.is_prepared(function) and not bare:  # `if not hasattr(model, "module")`
            found.append(call)
    return found


def _is_handed(script: Script, call: Call) -> bool:
    """Whether a function that one rank calls gets the prepared model under another name: the call is what is wrong."""
    function, name = script.tree.scope(call.node), dotted(call.node.func)
    known = name in script.engines.prepared_names or name not in parameters(function)
    return not known and script.ranks.runs_function(function) and bool(script.origins.given(name, call.node))


def _runs_prepared(script: Script, call: Call) -> bool:
    """Whether one of the script's own functions goes through batches with the prepared model that it is given."""
    if script.ranks.own_guard(call.node) is None:
        return False
    given = [v for v in call.arguments if script.engines.is_prepared(v)]
    if not given:
        return False
    function = script.origins.called(call.node)
    if function is None:
        return False
    names = {p for p in parameters(function) if any(argument(function, p, call.node) is v for v in given)}
    for node in walk(function):
        if isinstance(node, ast.Call) and _evaluates(script, node, names):
            return not any(script.tree.scope(b.call) is function for b in script.training.backwards)
        evaluates = script.tree.loops(node) or script.tree.without_gradient(node)
        if isinstance(node, ast.Call) and dotted(node.func) in names and evaluates:
            if any(one.scope is function for one in script.names.assigned(dotted(node.func), node)):
                return False  # it is unwrapped first
            if script.ranks.runs_function(function) and dotted(node.func) in script.engines.prepared_names:
                return False  # which is found itself
            return not any(script.tree.scope(b.call) is function for b in script.training.backwards)
    return False


def _evaluates(script: Script, call: ast.Call, names: set[str]) -> bool:
    """Whether a function of another package goes through a data set with one of these models."""
    known = _EVALUATES.search(dotted(call.func).rpartition(".")[2]) is not None
    return known and any(dotted(v) in names for v in call.args) and script.origins.called(call) is None


def _learns_nothing(script: Script, node: ast.AST) -> bool:
    """Whether a forward pass is part of an evaluation: in a loop without a backward pass, or without gradients."""
    if script.tree.without_gradient(node):
        return True
    loops = script.tree.loops(node)
    return bool(loops) and not any(b.loop in loops for b in script.training.backwards)


def _single(script: Script, call: Call, fix: Message) -> Violations:
    if not script.ranks.is_single(call.node):
        return
    guard = script.ranks.guard(call.node)
    name = dotted(call.node.func) or call.name
    if guard is None:
        message = say("{name} runs only on some ranks: its function is called on one process", name=name)
    else:
        message = say("{name} runs only on some ranks: under the condition {test}", name=name, test=describe(guard))
    yield Violation(message, Fix(message=fix), place=script.place(call.node))


def in_functions(script: Script, calls: Sequence[Call]) -> Violations:
    """Calls of the project's own functions that only some ranks reach, where the functions need all of them."""
    needing = _needing(script, calls) if calls and script.ranks.differ else {}
    seen: set[ast.AST] = set()
    for function, call in needing.items():
        for site in script.origins.sites(function):
            guard = script.ranks.guard(site)
            grouped = any("group" in written(v) for v in (*site.args, *(k.value for k in site.keywords)))
            if (
                guard is None
                or site in seen
                or grouped
                or _is_answered_by(script, site, script.origins.sites(function))
            ):
                continue
            seen.add(site)
            yield _calls_on_some_ranks(script, site, call, guard)


def _calls_on_some_ranks(script: Script, site: ast.Call, call: Call, guard: Guard) -> Violation:
    return violation(
        "{name} calls {collective}, but runs only on some ranks: under the condition {test}",
        remedy("call {name} on every rank, outside the condition", name=dotted(site.func)),
        name=dotted(site.func),
        collective=dotted(call.node.func) or call.name,
        test=describe(guard),
        place=script.place(site),
    )


def in_branches(script: Script, calls: Sequence[Call]) -> Violations:
    """Calls, by some ranks only, of functions with a branch per engine, where that of one engine needs all ranks."""
    for call in calls:
        function = script.tree.scope(call.node)
        tests = [g for g in script.tree.guards(call.node) if _BACK_ENDS.search(written(g.test))]
        if not tests or not isinstance(function, Function) or script.ranks.own_guard(call.node) is not None:
            continue
        if script.ranks.runs_function(function) or function in _needing(script, calls):
            continue  # which is found itself
        sites = script.origins.sites(function)
        others = [t for site in sites for t in script.tree.guards(site) if _BACK_ENDS.search(written(t.test))]
        for site in sites if not others else ():
            guard = script.ranks.guard(site)
            if guard is None:
                continue
            yield _calls_on_some_ranks(script, site, call, guard)


def _needing(script: Script, calls: Sequence[Call]) -> dict[Function, Call]:
    """The functions that all ranks must call together, each with the call in it that is why."""
    found: dict[Function, Call] = {}
    whole = [call for call in calls if not _is_in_group(script, call) or _is_group_optional(script, call)]
    fresh = [(call.node, call) for call in whole if not _answered(script, call)]
    beside: dict[ast.AST, list[ast.Call]] = {}
    for call in calls:
        beside.setdefault(script.tree.scope(call.node), []).append(call.node)
    for _ in range(_DEEP):
        reached = []
        for node, call in fresh:
            function = script.tree.scope(node)
            if not isinstance(function, Function) or function in found:
                continue
            others = beside.get(function, ())
            either = any(script.tree.exclusive(node, other) for other in others if other is not node)
            if either or _is_always_reached(script, node, function):
                found[function] = call
                reached += [(site, call) for site in script.origins.sites(function)]
        fresh = reached
    return {function: call for function, call in found.items() if not script.ranks.runs_function(function)}


def _is_group_optional(script: Script, call: Call) -> bool:
    """Whether the group of a collective is a parameter of its function, which may be left out."""
    group, function = call.keyword("group"), script.tree.scope(call.node)
    return group is not None and isinstance(group, ast.Name) and group.id in _optional(function)


def _optional(function: ast.AST) -> set[str]:
    """The parameters of a function that are None where they are not given."""
    if not isinstance(function, Function):
        return set()
    names, defaults = [a.arg for a in (*function.args.posonlyargs, *function.args.args)], function.args.defaults
    last = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    named = zip((a.arg for a in function.args.kwonlyargs), function.args.kw_defaults, strict=True)
    return {name for name, value in (*last, *named) if isinstance(value, ast.Constant) and value.value is None}


def _is_always_reached(script: Script, node: ast.AST, function: Function) -> bool:
    """Whether all calls of a function come to a node in it, on whatever rank and with whatever arguments."""
    if script.ranks.is_single(node):
        return False
    given = {name for name in parameters(function) if not _SEVERAL.search(name) and not _SETTINGS.search(name)} - {
        "self"
    }
    given -= _never_given(script, function, given)
    tests = [guard.test for guard in script.tree.guards(node) if not _is_repeated(script, guard.test, function)]
    tests = [test for test in tests if not _SHARDED.search(written(test))]
    return not any(isinstance(n, ast.Name) and n.id in given for test in tests for n in walk(test))


def _never_given(script: Script, function: Function, names: set[str]) -> set[str]:
    """The parameters that no call of a function gives, so that they always have their defaults."""
    optional, sites = _optional(function) & names, script.origins.sites(function)
    if not optional or not sites or any(k.arg is None for site in sites for k in site.keywords):
        return set()
    return {name for name in optional if all(argument(function, name, site) is None for site in sites)}


def _is_repeated(script: Script, test: ast.expr, function: Function) -> bool:
    """Whether the other branch calls the function itself, for each part of what it was given."""
    parent = script.tree.parent(test)
    if not isinstance(parent, ast.If):
        return False
    calls = (n for statement in parent.body for n in walk(statement) if isinstance(n, ast.Call))
    return any(script.origins.called(call) is function for call in calls)


def _is_answered_by(script: Script, site: ast.Call, sites: Sequence[ast.Call]) -> bool:
    """Whether the other ranks make the same call in another branch of the same function."""
    mine = script.ranks.own_guard(site)
    for one in sites:
        if one is not site and script.tree.scope(one) is script.tree.scope(site):
            theirs = script.ranks.own_guard(one)
            apart = mine and theirs and _is_others(script, mine) != _is_others(script, theirs)
            if apart or script.tree.exclusive(site, one):
                return True
    return False


def _is_of_all(script: Script, group: ast.expr) -> bool:
    """Whether a group is made without a list of ranks: `new_group(backend="gloo")` has all of them."""
    made = [a.value for a in script.names.assigned(dotted(group), group) if not _is_constant(a.value)]
    if isinstance(group, ast.Name):  # a global of any module
        everywhere = [a for a in script.names.all_of(group.id) if isinstance(a.node, ast.Assign)]
        whole = [a.value for a in everywhere if a.alone and a.value is a.node.value]  # type: ignore[attr-defined]
        made += [value for value in whole if not _is_constant(value)]
    calls = [value for value in made if isinstance(value, ast.Call)]
    return bool(calls) and len(calls) == len(made) and all(_has_all(script, value) for value in calls)


def _is_constant(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant)


def _has_all(script: Script, call: ast.Call) -> bool:
    ranks = next((k.value for k in call.keywords if k.arg == "ranks"), call.args[0] if call.args else None)
    new = script.names.resolved(call.func) == "torch.distributed.new_group"
    return new and (ranks is None or (constant(ranks) is None and isinstance(ranks, ast.Constant)))


def _is_in_group(script: Script, call: Call) -> bool:
    """Whether a collective is meant for some ranks only; FSDP's group is that of the model."""
    if "FullyShardedDataParallel" in call.name:
        return False
    told = call.keyword("group") or call.keyword("process_group")
    if told is not None:
        return not _is_of_all(script, told)
    return any("group" in dotted(value) or dotted(value).endswith("pg") for value in call.node.args)


def _answered(script: Script, call: Call) -> bool:
    """Whether the other ranks make the matching call elsewhere in the function."""
    scope = script.tree.scope(call.node)
    mine = script.ranks.own_guard(call.node)
    if mine is None:
        return False
    for other in script.called(call.name):
        if other is not call and script.tree.scope(other.node) is scope:
            theirs = script.ranks.own_guard(other.node)
            if theirs is not None and _is_others(script, mine) != _is_others(script, theirs):
                return True
    return False


def _is_others(script: Script, guard: Guard) -> bool:
    """Whether a condition on the rank is true on the ranks other than the main one."""
    test, positive = guard.test, guard.positive
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        if script.ranks.is_rank(test.operand):
            return not positive
        return _is_others(script, Guard(test.operand, not positive))
    if isinstance(test, ast.BoolOp):
        parts = [Guard(value, positive) for value in test.values if script.ranks.differs(value, positive)]
        return any(_is_others(script, part) for part in parts)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq | ast.Gt | ast.NotIn):
        return positive
    return not positive
