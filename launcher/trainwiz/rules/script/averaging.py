"""Models whose gradients nothing averages over the ranks, and whose weights nothing makes alike."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator

from trainwiz.engines.names import names
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.engines import BY_HAND
from trainwiz.script.outline import Outline
from trainwiz.script.tree import Function, dotted, method, operates, walk, written

_WRAPS = re.compile(
    r"Parallel|FSDP|fully_shard|parallelize|distribute_|replicate|horovod|hvd\.|fairscale|"
    r"deepspeed|pipelin|ZeRO|rpc|bagua|accelerat|Fabric|average_|allreduce|megatron|byteps|colossal|LocalSGD|DiLoCo|optim\.Distributed|DistributedOptimizer"
)
_REDUCES = ("all_reduce", "reduce", "all_gather", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor")
_SHARES_WEIGHTS = re.compile(r"broadcast|sync_(params|weights|parameters)|load_state_dict|from_pretrained")
_MAY_WRAP = re.compile(r"wrap|boost|initialize|setup|prepare|sync_(grad|model|param)|parallel|distribut", re.IGNORECASE)
_SEEDS = names("torch.manual_seed transformers.set_seed accelerate.utils.set_seed torch.cuda.manual_seed_all")
_GRADIENTS = re.compile(r"grad(s|ients?)?\b|grad_|gradient|param|weights|bucket|model\b|net\b")
_MADE_OF = 3
"""How often what something is made of is asked for what that is made of."""
_CRITERION = re.compile(r"loss|crit|metric", re.IGNORECASE)


def never_averaged(script: Script) -> Violations:
    """Models that learn on several ranks, but that no wrapper knows, or one of several that was left out."""
    if not script.called("torch.distributed.init_process_group") or not script.training.steps:
        yield from _left_out(script)
        return
    if _says_wrapped(script) or any(_is_of_gradients(script, c.node) for c in script.calls_of(*_REDUCES)):
        yield from _left_out(script)
        return
    for name, forward in _learners(script):
        yield violation(
            "a process group is created, but {name} is never wrapped: gradients are not averaged",
            remedy("wrap it: DistributedDataParallel(model, device_ids=[local_rank])"),
            name=name,
            place=script.place(forward),
        )
        return


@rule("TW772", level=Level.WARNING, field="script")
def weights_start_alike(script: Script) -> Violations:
    """If gradients are averaged by hand, all ranks must start with the same weights.

    Without it: each rank starts with its own random weights; the same averaged gradients are added to different
    models, and the saved model is that of rank 0, for which the other ranks' gradients were wrong.
    Why: DistributedDataParallel broadcasts the weights of rank 0 when it is created; all_reduce does not.
    Instead: call dist.broadcast(parameter.data, 0) for all parameters before the training, or use the same seed on
    all ranks before the model is created.
    Source: https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html (distributed training)
    """
    if not script.training.steps:
        return
    averaged = [c for c in script.calls_of("all_reduce") if _is_of_gradients(script, c.node)]
    if not averaged or _says_wrapped(script) or script.says(_SHARES_WEIGHTS):
        return
    seeds = _before_weights(script, [c for c in script.called(*_SEEDS) if c.node.args])
    if seeds and not any(_differs(script, c.node.args[0]) for c in seeds):
        return
    yield violation(
        "gradients are averaged by hand, but the ranks start with different weights",
        remedy("broadcast the parameters of rank 0 before training"),
        place=script.place(averaged[0].node),
    )


def _before_weights(script: Script, seeds: list[Call]) -> list[Call]:
    """The last seed above the line that makes the model, where that is known; else all of them."""
    for call in script.makers("Optimizer"):
        for name in _optimized(script, call):
            made = script.names.latest(name, call.node)
            above = [c for c in seeds if made is not None and script.tree.is_before(c.node, made.node)]
            if above:
                return [max(above, key=lambda c: script.tree.position(c.node))]
    return seeds


def _differs(script: Script, seed: ast.expr) -> bool:
    """Whether a seed is another one on each rank; `seed - rank` takes back what was added before."""
    if operates(seed, ast.Sub):
        return not script.ranks.mentions_rank(seed.right) and _differs(script, seed.left)  # type: ignore[attr-defined]
    return script.ranks.mentions_rank(seed)


def _says_wrapped(script: Script) -> bool:
    """Whether anything in use, which an import alone is not, has the name of what averages gradients."""
    for outline in script.tree.outlines:
        for name, nodes in outline.once(_named).items():
            whole = script.names.meant(name)
            wraps = _wraps(whole) and not whole.startswith("torch.cuda")
            used = [n for n in nodes if _is_used(script, n) and not _is_asked(script, n)] if wraps else []
            # DataParallel of the only process says nothing of several.
            if any(not any(map(script.ranks.is_alone, script.tree.guards(n))) for n in used):
                return True
    return False


def _named(outline: Outline) -> dict[str, list[ast.AST]]:
    """The names and attributes of a module by their dotted names; `.name` for attributes of anything else."""
    found: dict[str, list[ast.AST]] = {}
    for node in (*outline.of(ast.Name), *outline.of(ast.Attribute)):
        found.setdefault(dotted(node) or f".{node.attr}", []).append(node)
    return found


@functools.lru_cache(maxsize=50_000)
def _wraps(name: str) -> bool:
    """Whether something of this name averages gradients; scripts share most of their names."""
    return _WRAPS.search(name) is not None


def _is_asked(script: Script, node: ast.AST) -> bool:
    """Whether a class is only asked for: `isinstance(model, DistributedDataParallel)`."""
    around = itertools.takewhile(lambda a: isinstance(a, ast.expr), script.tree.above(node))
    return any(
        (isinstance(a, ast.Call) and dotted(a.func) == "isinstance")
        or (isinstance(a, ast.Compare) and "type(" in written(a.left))
        for a in around
    )


def _is_used(script: Script, node: ast.AST) -> bool:
    """Whether a node stands in a function or class that something else names, or in none."""
    around = [a for a in script.tree.above(node) if isinstance(a, Function | ast.ClassDef)]
    if not around:
        return True
    return _is_named(script, around[-1])


def _is_named(script: Script, outer: Function | ast.ClassDef) -> bool:
    """Whether a function or class of the module is named outside of itself."""
    if outer.name == "main" or outer.decorator_list:
        return True
    inside = set(walk(outer))
    if any(node not in inside for node in script.tree.mentions(outer.name)):
        return True
    return script.tree.outline(outer) == len(script.parts) - 1  # others may import it from the script itself


def _is_of_gradients(script: Script, call: ast.Call) -> bool:
    """Whether a collective may combine gradients or weights: what is around it names them."""
    function = script.tree.scope(call)
    said = [call, *(loop.iter for loop in script.tree.loops(call) if isinstance(loop, ast.For))]
    names = [n for value in list(said) for n in walk(value) if isinstance(n, ast.Name)]
    said += [one.value for n in names if (one := script.names.latest(n.id, call)) is not None]
    said += [value for site in script.origins.sites(function) for value in site.args]
    named = getattr(function, "name", "")
    return any(_GRADIENTS.search(text) for text in (named, *map(ast.unparse, said))) and _is_used(script, call)


def _learners(script: Script) -> Iterator[tuple[str, ast.expr]]:
    """The models whose parameters an optimizer has, each where the loss of a backward pass in a loop begins."""
    known = {name for call in script.makers("Optimizer") for name in _optimized(script, call)}
    for backward in script.training.backwards:
        if not script.origins.loops(backward.call):
            continue
        for loss in script.training.losses(backward):
            for node in script.names.feeding(loss):
                if not isinstance(node, ast.Call) or script.tree.without_gradient(node):
                    continue
                called = dotted(node.func).removesuffix(".forward")
                if called.rpartition(".")[0] in known:  # a method of the model that computes what is learned from
                    called = called.rpartition(".")[0]
                if called in known or ("model" in called and _is_made(script, node.func)):
                    yield called, node
                for value in (*node.args, *(k.value for k in node.keywords)):
                    if dotted(value) in known:
                        yield dotted(value), node


def _is_made(script: Script, called: ast.expr) -> bool:
    """Whether it is known what makes a model that is called: `model(x)`, `model.forward(x)`."""
    model = called.value if isinstance(called, ast.Attribute) and called.attr == "forward" else called
    return bool(script.origins.makers(model))


def _optimized(script: Script, call: Call) -> set[str]:
    """The names of the models whose parameters an optimizer gets."""
    given = call.argument("params", 0)
    found = set()
    for node in script.names.feeding(given, call.node) if given is not None else ():
        if not isinstance(node, ast.Call):
            continue
        if method(node) in ("parameters", "named_parameters"):
            found.add(dotted(node.func).rpartition(".")[0].removesuffix(".module"))
        elif re.search("param", dotted(node.func)):
            found |= {dotted(value) for value in node.args}
    return {name for name in found if name and name != "self"}


def _left_out(script: Script) -> Violations:
    """Beside models that are wrapped by hand, one of the same function that learns, but that nothing wraps."""
    wraps = [c for c in script.called(*BY_HAND) if isinstance(script.tree.statement(c.node), ast.Assign)]
    if not wraps or not script.training.steps or script.calls_like("Zero"):
        return
    scopes = {script.tree.scope(c.node) for c in wraps}
    wrapped = set()
    for wrap in wraps:
        given = wrap.argument("module", 0)
        wrapped |= _parts(script, given) if given is not None else set()
        statement = script.tree.statement(wrap.node)
        wrapped |= {dotted(n) for target in getattr(statement, "targets", ()) for n in walk(target)}
    made = [c for c in script.makers("Optimizer") if script.tree.scope(c.node) in scopes]
    known = {name for call in made for name in _optimized(script, call)} - wrapped
    for name, forward in _learners(script) if known else ():
        if name in known and not _CRITERION.search(name) and not _may_be_wrapped(script, name, made[0].node):
            yield violation(
                "{name} is trained, but only other models are wrapped: its gradients are not averaged",
                remedy("wrap it: DistributedDataParallel(model, device_ids=[local_rank])"),
                name=name,
                place=script.place(forward),
            )
            return


def _parts(script: Script, value: ast.expr) -> set[str]:
    """The names of a model, and of those that it was made of: `model = Both(encoder, decoder)`."""
    found, values = _names_in(value), {value}
    for _ in range(_MADE_OF):
        made = (a for one in values for name in _names_in(one) for a in script.names.assigned(name, one) if a.alone)
        values = {a.value for a in made if isinstance(a.value, ast.Call)}
        found = found.union(*map(_names_in, values))
    return found


def _names_in(value: ast.expr) -> set[str]:
    return {name for node in walk(value) if (name := dotted(node))}


def _may_be_wrapped(script: Script, name: str, at: ast.AST) -> bool:
    """Whether something that could wrap a model makes it, or is given it."""
    for one in script.names.assigned(name, at):
        for node in walk(one.value):
            if isinstance(node, ast.Call) and _may_wrap(script, node):
                return True
            if isinstance(node, ast.Attribute) and node.attr == "module":
                return True
    for call in script.calls:
        given = [dotted(value) for value in (*call.node.args, *(k.value for k in call.node.keywords))]
        if name in given and _may_wrap(script, call.node):
            return True
    return any(c.node.args and _is_of_gradients(script, c.node) for c in script.calls_of(*_REDUCES))


def _may_wrap(script: Script, call: ast.Call) -> bool:
    """Whether a call may return, or change, a model so that its gradients are averaged."""
    name = script.names.resolved(call.func)
    own = script.origins.kind(name) or script.names.function(name)
    if own is not None:
        return _WRAPS.search(written(own)) is not None
    return any(pattern.search(text) for pattern, text in ((_WRAPS, name), (_MAY_WRAP, name.rpartition(".")[2])))
