"""Models, optimizers and loaders as the engine must get them: all of them, in order, and used through their wrapper."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from trainwiz.finding import Fix, Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.script.averaging import never_averaged
from trainwiz.rules.script.early_optimizers import makes_optimizer
from trainwiz.rules.script.samples import SEVERAL_RANKS, is_of_one_rank
from trainwiz.script import Call, Script
from trainwiz.script.names import parameters
from trainwiz.script.origins import argument, given_on
from trainwiz.script.training import Backward, drawn_from
from trainwiz.script.tree import Function, Loop, constant, dotted, method, walk, written

_LOADERS = ("torch.utils.data.DataLoader", "DataLoader")
_ENGINES = ("Accelerator", "Fabric")
_SPREADS = ("auto", "balanced", "sequential")
_ASKED = re.compile(r"WORLD_SIZE|ddp_find_unused_parameters")
"""In a program that asks how many ranks there are."""
_PREPARES = ("Accelerator.prepare", "Fabric.setup")
_LOADING = re.compile(
    r"prepare|setup|initialize|loader|enumerate|tqdm|^iter$|^next$|optim|sched|(^|_)dl$", re.IGNORECASE
)
"""In the names of what a wrapper beside the model has, and of what goes over it."""
_NO_PASS = re.compile(
    r"^(parameters|named_|state_dict|load|to$|cuda$|train$|eval$|requires_grad|zero_grad|apply$|register_|get_\w*embed|"
    r"clip_grad|no_sync|set_|update|log|save|prepare|generate|sample|add_noise|config|decode$|tokeniz|unpatchify|modules|"
    r"children|half$|float$|scale|get_lr|step$|forward$)"
)
"""Methods of a model that go through none of its trained layers, or are no part of a training."""
_ASIDE = ("state_dict", "load_state_dict", "deepcopy", "format", "print", "info", "update")
"""Methods that may get a bare model beside the training."""


@rule("TW718", level=Level.ERROR, field="script")
def models_learn_through_their_wrapper(script: Script) -> Violations:
    """Train with what DDP, prepare or initialize returned, not with the bare model inside.

    Without it: the gradients of the ranks are never averaged: each rank trains its own model, and the saved one has
    learned from 1/N of the data. FSDP and ZeRO 3 fail, because a rank has only its shards.
    Why: DDP's forward pass prepares the averaging of gradients in the backward pass; model.module bypasses it.
    Instead: call the wrapper: model(batch). Use model.module and unwrap_model only to save, or in evaluation.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html; seen with
    torch 2.13 on two ranks
    """
    for backward in script.training.distinct:
        for loss in script.training.losses(backward):
            bare = _bare_forward(script, loss)
            if bare is not None:
                yield violation(
                    "{name} bypasses the wrapper: gradients are not averaged over ranks",
                    remedy("call the wrapped model itself"),
                    name=written(bare.func if isinstance(bare, ast.Call) and not _unwraps(script, bare) else bare),
                    place=script.place(bare),
                )
                return
    yield from never_averaged(script)
    yield from _thrown_away(script)


def _thrown_away(script: Script) -> Violations:
    """A wrapper that nothing keeps: `DDP(model)` leaves the model as it was."""
    for call in script.called("torch.nn.parallel.DistributedDataParallel"):
        function = script.tree.scope(call.node)
        returned = isinstance(script.tree.parent(call.node), ast.Return) and isinstance(function, Function)
        for site in script.origins.sites(function) if returned else [call.node]:
            if isinstance(script.tree.parent(site), ast.Expr):
                yield violation(
                    "the wrapped model is thrown away: {name} leaves the model itself as it was",
                    remedy("keep what it returns: model = {name}(…)", name=dotted(site.func)),
                    name=dotted(site.func),
                    place=script.place(site),
                )


@rule("TW738", level=Level.ERROR, field="script")
def everything_is_prepared(script: Script) -> Violations:
    """Pass model, optimizer and training loader to accelerator.prepare.

    Without it: an unprepared loader gives every rank all batches, so that N ranks learn the same N times; an
    unprepared optimizer steps in every micro-batch of accumulate() and ignores the loss scale; an unprepared model
    does not average gradients.
    Why: prepare returns new objects; the original ones are unchanged.
    Instead: write model, optimizer, loader = accelerator.prepare(model, optimizer, loader).
    Under Lightning's Fabric, the same holds for fabric.setup and fabric.setup_dataloaders.
    Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration; seen with accelerate 1.15
    """
    prepares = [c for c in script.calls_like("^(prepare|setup)") if c.name.startswith(_PREPARES)]
    spread = [v for c in prepares for v in c.node.args if isinstance(v, ast.Starred)]
    if not prepares or any(not re.search("optim|sched", written(v), re.IGNORECASE) for v in spread):
        return
    given = {dotted(n) for c in prepares for v in c.node.args for n in walk(v) if dotted(n)}
    given &= script.engines.prepared_names  # the same name holds what came back
    for loop in dict.fromkeys((*script.training.turns, *script.training.drawing)):
        if not any(b.by in _ENGINES for b in script.training.within(loop)):
            continue
        for source in _all_sources(script, loop):
            if _is_new(script, source, given, _is_loader):
                yield violation(
                    "{name} was not prepared: every rank gets all of its batches",
                    _passed(prepares),
                    name=dotted(source),
                    place=script.place(source),
                )
    by_accelerator = [b for b in script.training.backwards if b.by in _ENGINES]
    learning = {loop for b in by_accelerator for loop in script.origins.loops(b.call)}
    for step in script.training.steps:
        owner = step.func.value  # type: ignore[attr-defined]
        if not learning.isdisjoint(script.origins.loops(step)) and _is_new(script, owner, given, _is_optimizer):
            yield violation(
                "{name} was not prepared: it ignores accumulation and loss scale",
                _passed(prepares),
                name=dotted(owner),
                place=script.place(step),
            )
    yield from _no_model(script, prepares, by_accelerator)
    yield from _no_optimizer(script, prepares, learning)
    yield from _in_one_branch(script, prepares)
    for backward in script.training.distinct if by_accelerator else ():
        for node in script.names.feeding(backward.loss):
            if isinstance(node, ast.Call) and _is_new(script, node.func, given, _is_model):
                yield violation(
                    "{name} was not prepared: its gradients are not averaged over ranks",
                    _passed(prepares),
                    name=dotted(node.func),
                    place=script.place(node),
                )
                return


@rule("TW768", level=Level.WARNING, field="script")
def models_of_several_ranks_have_no_device_map(script: Script) -> Violations:
    """Do not load a model with device_map="auto" in a script that runs on several ranks.

    Without it: every rank spreads its copy over all GPUs, which collide; accelerate stops with `You can't train a
    model that has been loaded with device_map='auto' in any distributed mode`.
    Why: device_map="auto" is for one process that owns all GPUs.
    Instead: remove it; for quantized models, use device_map={"": accelerator.process_index}.
    Source: https://huggingface.co/docs/accelerate/concept_guides/big_model_inference
    """
    trains = script.training.backwards or script.called("Trainer.train")
    by_trainer = bool(script.called("Trainer.train")) and (script.says(SEVERAL_RANKS) or script.says(_ASKED))
    if not trains or not (script.engines.several or _asks_rank(script) or by_trainer):
        return
    for call in script.calls_with("device_map"):
        value = call.keyword("device_map")
        known = script.values.of(value)
        map = known.value if known and not known.option else _only_map(script, value)
        if value is not None and map in _SPREADS:
            yield violation(
                'device_map="{map}" spreads the model of every rank over all GPUs',
                remedy("remove device_map; the engine places the model"),
                map=map,
                place=script.place(value),
            )


def _only_map(script: Script, value: ast.expr | None) -> object:
    """What a name is assigned beside None, where a program asks for its rank or their number, and nothing else."""
    made = [a.value for a in script.names.assigned(dotted(value), value)] if value is not None and dotted(value) else []
    kinds = {one.value for one in made if isinstance(one, ast.Constant)} - {None}
    alone = len(made) > 1 and len(kinds) == 1 and all(isinstance(one, ast.Constant) for one in made)
    return next(iter(kinds)) if alone else None


def _asks_rank(script: Script) -> bool:
    """Whether a script reads its rank from the environment, as one that torchrun starts does."""
    return any(
        constant(value) in ("RANK", "LOCAL_RANK") and not script.tree.guards(call.node)
        for call in script.called("os.environ.get", "os.getenv")
        for value in call.node.args[:1]
    )


def _passed(prepares: Sequence[Call]) -> Fix:
    if all(call.name.startswith("Fabric") for call in prepares):
        return remedy("pass it to fabric.setup or fabric.setup_dataloaders, and use what that returns")
    return remedy("pass it to accelerator.prepare, and use what that returns")


def _is_bare(script: Script, call: ast.Call) -> bool:
    """Whether a call is a forward pass of the model inside a wrapper."""
    function: ast.expr = call.func
    if isinstance(function, ast.Attribute) and function.attr == "forward":
        function = function.value
    if isinstance(function, ast.Call):
        return _unwraps(script, function)
    if isinstance(function, ast.IfExp):
        return any(_is_inside(script, one) for one in _choices(function))
    if isinstance(function, ast.Attribute) and function.attr == "module":
        return script.engines.is_prepared(function.value) or _is_wrapper(script, function.value)
    if _is_never_wrapped(script, function):
        return True
    latest = script.names.latest(dotted(function), function) if dotted(function) else None
    if _is_wrapped_elsewhere(script, call, dotted(function)):
        return True
    if latest is None and _is_given_bare(script, call, dotted(function)):
        return True
    if latest is None or not latest.alone or latest.scope is not script.tree.scope(call):
        return False
    known = script.names.assigned(latest.name, function)
    made = [latest, *(one for one in known if one.alone and script.tree.exclusive(one.node, latest.node))]
    return any(_is_inside(script, value) for one in made for value in _choices(one.value))


def _is_wrapper(script: Script, value: ast.expr) -> bool:
    """Whether a value was made by what wraps models, in whatever function."""
    made = script.origins.makers(value) if script.engines.several and dotted(value) else []
    return any(map(script.engines.wraps, made))


def _is_never_wrapped(script: Script, function: ast.expr) -> bool:
    """Whether a model was wrapped under another name, in whatever function, and no loss comes from the wrapper."""
    wraps = script.wrappers  # DeepSpeed's engine averages in its own backward pass
    if not dotted(function) or not wraps or not script.engines.several or script.engines.is_prepared(function):
        return False
    made = set(script.origins.makers(function))
    if not made or any(map(script.engines.wraps, made)):
        return False
    for wrap in wraps:
        given = wrap.argument("module", 0)
        if dotted(function) in _bound(script, wrap):
            return False
        if given is not None and made == set(script.origins.makers(given)):
            return not any(_runs(script, b.loss, wrap.node) for b in script.training.distinct)
    return False


def _runs(script: Script, loss: ast.expr, wrap: ast.Call) -> bool:
    """Whether anything that feeds a loss may be a forward pass through this wrapper, or gets it."""
    for node in script.names.feeding(loss):
        if isinstance(node, ast.Call):
            given = (node.func, *node.args, *(k.value for k in node.keywords))
            if any(wrap in script.origins.makers(value) for value in given if dotted(value)):
                return True
    return False


def _bare_forward(script: Script, loss: ast.expr) -> ast.expr | None:
    """The call of the model inside a wrapper, or that model as it is given to what computes the loss."""
    calls = [n for n in _fed(script, loss) if isinstance(n, ast.Call) and not script.tree.without_gradient(n)]
    for call in calls:
        if _is_bare(script, call):
            return call
    for call in calls if script.engines.several else ():
        if _is_own_method(script, call) and not any(_runs_wrapper(script, other) for other in calls):
            return call
    for call in calls if script.engines.several else ():
        given = [*call.args, *(k.value for k in call.keywords)]
        if (
            len(given) > 1
            and script.origins.loops(call)
            and method(call) not in _ASIDE
            and "getattr" not in dotted(call.func)
        ):
            bare = next((v for v in given if _is_bare_model(script, v, call)), None)
            if bare is not None and not any(_runs_wrapper(script, other) for other in calls):
                return bare
    return None


def _is_own_method(script: Script, call: ast.Call) -> bool:
    """Whether a method of the model inside a wrapper computes something: `model.module.loss(batch)`."""
    function = call.func
    if not isinstance(function, ast.Attribute) or _NO_PASS.search(function.attr):
        return False
    if all(constant(value) is not None for value in (*call.args, *(k.value for k in call.keywords))):
        return False
    return bool(script.origins.loops(call)) and _leads_inside(script, function.value)


def _leads_inside(script: Script, value: ast.expr) -> bool:
    """Whether a value is the model inside a wrapper: itself, by a name, or by a method that returns it."""
    if isinstance(value, ast.Attribute) and script.engines.kind(value.value) == "DeepSpeedEngine":
        return False  # which averages in its own backward pass
    if _is_inside(script, value):
        return True
    if isinstance(value, ast.Call):
        function = script.origins.called(value)
        returned = script.origins.returned(function) if function is not None else []
        return any(_is_inside(script, one) for found in returned for one in _choices(found))
    latest = script.names.latest(dotted(value), value) if dotted(value) else None
    if latest is None or not latest.alone or latest.scope is not script.tree.scope(value):
        return False
    return any(_leads_inside(script, one) for one in _choices(latest.value) if not isinstance(one, ast.Name))


def _fed(script: Script, loss: ast.expr) -> list[ast.AST]:
    """What feeds a loss, with what the project's functions return that make it."""
    found = list(script.names.feeding(loss))
    for node in [n for n in found if isinstance(n, ast.Call) and not script.tree.without_gradient(n)]:
        function = script.origins.called(node)
        if function is not None and not isinstance(script.tree.parent(function), ast.ClassDef):
            for value in script.origins.returned(function):
                found += (n for n in script.names.feeding(value) if script.tree.scope(n) is function)
    return list(dict.fromkeys(found))


def _is_given_bare(script: Script, call: ast.Call, name: str) -> bool:
    """Whether all calls of a function give it the model inside a wrapper under this name."""
    function = script.tree.scope(call)
    sites = script.origins.sites(function) if name in parameters(function) else []
    given = [(site, argument(function, name, site)) for site in sites]
    return bool(given) and all(value is not None and _is_alias(script, value, site) for site, value in given)


def _is_alias(script: Script, value: ast.expr, site: ast.Call) -> bool:
    """Whether a value is the model inside a wrapper, or a name for it."""
    if _is_inside(script, value):
        return True
    latest = script.names.latest(dotted(value), site) if isinstance(value, ast.Name) else None
    return latest is not None and latest.alone and _is_inside(script, latest.value)


def _runs_wrapper(script: Script, call: ast.Call) -> bool:
    """Whether a call is the forward pass of a wrapped model, or is given one."""
    if _unwraps(script, call):
        return False
    given = (call.func, *call.args, *(k.value for k in call.keywords))
    around = _LOADING.search(dotted(call.func)) is not None
    return not around and any(script.engines.is_prepared(v) and not _LOADING.search(dotted(v)) for v in given)


def _is_bare_model(script: Script, value: ast.expr, call: ast.Call) -> bool:
    """Whether a function gets the model inside a wrapper, where it should get the wrapper."""
    if _is_inside(script, value):
        return True
    name = dotted(value)
    if "." in name and name.startswith("self."):
        return any(
            dotted(wrap.argument("module", 0) or call) == name and name not in _bound(script, wrap)
            for wrap in script.wrappers
        )
    return bool(name) and _is_wrapped_elsewhere(script, call, name)


def _bound(script: Script, wrap: Call) -> set[str]:
    """The names that a wrapper gets; what is wrapped in place, or returned, is taken to have that of the model."""
    statement = script.tree.statement(wrap.node)
    targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is wrap.node else []
    return {dotted(n) for target in targets for n in walk(target)} or {dotted(a) for a in wrap.node.args[:1]}


def _choices(value: ast.expr) -> list[ast.expr]:
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


def _is_inside(script: Script, value: ast.expr) -> bool:
    """Whether this is the model inside a wrapper."""
    if isinstance(value, ast.Attribute) and value.attr == "module":
        return script.engines.is_prepared(value.value) or _is_wrapper(script, value.value)
    return isinstance(value, ast.Call) and _unwraps(script, value)


def _is_wrapped_elsewhere(script: Script, call: ast.Call, name: str) -> bool:
    """Whether a model was wrapped before this forward pass, and the wrapper has another name."""
    for wrap in script.wrappers if name else ():
        statement = script.tree.statement(wrap.node)
        if not isinstance(statement, ast.Assign) or statement.value is not wrap.node:
            continue
        given = wrap.argument("module", 0)
        bound = {dotted(n) for target in statement.targets for n in walk(target)}
        here = script.tree.scope(wrap.node) is script.tree.scope(call) and script.tree.is_before(wrap.node, call)
        if given is not None and dotted(given) == name and name not in bound and here:
            latest = script.names.latest(name, call.func)
            return latest is None or script.tree.is_before(latest.node, wrap.node)
    return False


def _unwraps(script: Script, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return method(call) == "unwrap_model" and owner is not None and script.engines.kind(owner) == "Accelerator"


def _all_sources(script: Script, loop: ast.AST) -> Iterator[ast.expr]:
    """The same, with what the script's own generators go over that a loop draws from."""
    for source in _sources(loop, script):
        yield source
        for assigned in script.names.assigned(dotted(source), source):
            maker = assigned.value
            function = script.origins.called(maker) if isinstance(maker, ast.Call) else None
            given = argument(function, given_on(function), maker) if function is not None else None  # type: ignore[arg-type]
            if given is not None:
                yield given
            elif function is not None:
                inner = [n for n in walk(function) if isinstance(n, Loop)]
                yield from (one for n in inner if any(isinstance(y, ast.Yield) for y in walk(n)) for one in _sources(n))


def _sources(loop: ast.AST, script: Script | None = None) -> Iterator[ast.expr]:
    """What a loop goes over, inside progress bars and enumerate."""
    source = getattr(loop, "iter", None)
    given = script.training.given_on(loop) if script is not None and isinstance(loop, Loop) else None
    source = source if given is None else given
    drawn = drawn_from(loop) if isinstance(loop, Loop) else None
    while isinstance(source, ast.Call) and source.args and dotted(source.func) != "range":
        source = source.args[0]
    for one in (source, drawn):
        if one is not None and dotted(one):
            yield one


def _is_new(script: Script, value: ast.expr, given: set[str], wanted: object) -> bool:
    """Whether a value is surely one that the script made, and that prepare never saw."""
    name = dotted(value)
    if not name or name in given or script.engines.is_prepared(value):
        return False
    made = script.origins.makers(value)
    return bool(made) and all(wanted(script, maker) for maker in made)  # type: ignore[operator]


def _is_loader(script: Script, maker: ast.expr) -> bool:
    if not isinstance(maker, ast.Call) or not (
        script.names.resolved(maker.func) in _LOADERS or _is_loader_of_package(script, maker)
    ):
        return False
    own = any(k.arg in ("batch_sampler", None) and not _is_spread_plainly(script, k) for k in maker.keywords)
    samplers = [k.value for k in maker.keywords if k.arg == "sampler"]
    own = own or any(not is_of_one_rank(script, sampler) for sampler in samplers)
    return not own and not any(map(script.ranks.is_rank, script.names.feeding(maker)))


def _is_loader_of_package(script: Script, maker: ast.Call) -> bool:
    """Whether a function of some package makes a loader, which is told how to shuffle."""
    name = script.names.resolved(maker.func)
    told = {"batch_size", "shuffle"} <= {k.arg for k in maker.keywords}
    return told and "." in name and re.search(r"data_?loader$", name, re.IGNORECASE) is not None


def _is_spread_plainly(script: Script, keyword: ast.keyword) -> bool:
    """Whether `**kwargs` of a function's own parameter never has a sampler in it."""
    function = script.tree.scope(keyword)
    spread = getattr(getattr(function, "args", None), "kwarg", None)
    sites = script.origins.sites(function) if spread is not None and dotted(keyword.value) == spread.arg else []
    given = [k.arg for site in sites for k in site.keywords]
    return keyword.arg is None and bool(sites) and {None, "sampler", "batch_sampler"}.isdisjoint(given)


def _is_optimizer(script: Script, maker: ast.expr) -> bool:
    """Whether this makes an optimizer: torch's own, or by a class or a function that gets parameters or a model."""
    if not isinstance(maker, ast.Call):
        return False
    if script.engines.kind(maker) in ("Optimizer", "Scheduler"):
        return script.engines.kind(maker) == "Optimizer"
    statement = script.tree.statement(maker)
    named = isinstance(statement, ast.Assign) and all(script.engines.kind(t) == "Optimizer" for t in statement.targets)
    if named and script.origins.kind(script.names.resolved(maker.func)) is not None and not _prepares_parts(script):
        return any(script.engines.kind(n) == "Optimizer" for v in maker.args for n in script.names.feeding(v))
    engines = [n for n in walk(maker) if script.engines.kind(n) in ("Accelerator", "DeepSpeedEngine")]
    return named and not engines and re.search(r"param|model|net\b", written(maker)) is not None


def _prepares_parts(script: Script) -> bool:
    """Whether prepare gets something of an object that holds optimizers: `prepare(optimizer.optimizers[k])`."""
    given = (v for c in script.calls_like("^(prepare|setup)") for v in c.node.args)
    return any("optim" in written(value) for value in given)


def _no_model(script: Script, prepares: Sequence[Call], passes: Sequence[Backward]) -> Violations:
    """Optimizers, schedulers and loaders are prepared, but nothing else."""
    prepares = [c for c in prepares if c.last not in ("prepare_data_loader", "prepare_scheduler", "prepare_optimizer")]
    given = [v for c in prepares for v in c.node.args]
    rest = [v for v in given if not _is_aside(script, v)]
    optimizer = next((v for v in given if script.engines.kind(v) == "Optimizer"), None)
    if rest or optimizer is None or not passes or any(c.name != "Accelerator.prepare" for c in prepares):
        return
    yield violation(
        "{name} is prepared, but the model is not: its gradients are not averaged over ranks",
        _passed(prepares),
        name=dotted(optimizer),
        place=script.place(optimizer),
    )


def _no_optimizer(script: Script, prepares: Sequence[Call], learning: set[Loop]) -> Violations:
    """A model and its data are prepared, but no optimizer, wherever that comes from."""
    given = [v for c in prepares for v in c.node.args]
    named = all(dotted(v) or isinstance(v, ast.Call) for v in given)
    apart = any("optim" in written(v).lower() or script.engines.kind(v) == "Optimizer" for v in given)
    fabric = all(c.name.startswith("Fabric") for c in prepares)
    data = fabric or any(_is_aside(script, v) for v in given)
    if apart or not named or not data or script.calls_like("Dummy|prepare_optimizer|setup_optimizers"):
        return
    for step in script.training.steps:
        owner = step.func.value  # type: ignore[attr-defined]
        of_object = script.engines.kind(owner) == "Optimizer" and not learning.isdisjoint(script.origins.loops(step))
        if of_object and not script.engines.is_prepared(owner) and dotted(owner):
            yield violation(
                "{name} was not prepared: it ignores accumulation and loss scale",
                _passed(prepares),
                name=dotted(owner),
                place=script.place(step),
            )
            return


def _in_one_branch(script: Script, prepares: Sequence[Call]) -> Violations:
    """Of two branches that prepare the same optimizer, one leaves out the loader that the other prepares."""
    drawn = {dotted(source) for loop in script.training.turns for source in _sources(loop)}
    for one in prepares:
        for other in prepares:
            apart = one is not other and script.tree.exclusive(one.node, other.node)
            names = {dotted(v) for v in one.node.args}
            if not apart or not any(
                script.engines.kind(v) == "Optimizer" and dotted(v) in names for v in other.node.args
            ):
                continue
            for value in other.node.args:
                made = script.origins.makers(value)
                if dotted(value) in drawn - names and made and any(_is_loader(script, maker) for maker in made):
                    yield violation(
                        "{name} was not prepared: every rank gets all of its batches",
                        _passed(prepares),
                        name=dotted(value),
                        place=script.place(one.node),
                    )


def _is_aside(script: Script, value: ast.expr) -> bool:
    """Whether what is prepared is surely no model."""
    if script.engines.kind(value) in ("Optimizer", "Scheduler", "DataLoader"):
        return True
    return re.search(r"(loader|(^|_)dl)\d*$", dotted(value).rpartition(".")[2], re.IGNORECASE) is not None


def _is_model(script: Script, maker: ast.expr) -> bool:
    """Whether this makes a model with weights to train: an object of a class, or one that is loaded."""
    if not isinstance(maker, ast.Call):
        return False
    name = script.names.resolved(maker.func)
    loaded = method(maker) == "from_pretrained" and re.search(r"Model|For[A-Z]", name) is not None
    made = name.rpartition(".")[2][:1].isupper()
    return (loaded or made) and _is_trained(script, maker)


def _is_trained(script: Script, maker: ast.expr) -> bool:
    """Whether an optimizer gets the parameters of what is made here, and not only those of a model beside it."""
    statement = script.tree.statement(maker)
    names = [dotted(t) for t in statement.targets] if isinstance(statement, ast.Assign) else []
    made = script.makers("Optimizer")
    return any(makes_optimizer(script, call, name) for call in made for name in names)
