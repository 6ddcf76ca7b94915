"""The numbers that a script trains with: batch, accumulation, learning rate, schedule, clipping, precision.

Each stands where an engine would take it from: the Accelerator, the DataLoader, the optimizer, the schedule, the
clipping call, the loop over epochs, or the arguments of a Trainer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainwiz.engines.accelerate import DUMMY_OPTIMIZER_DEFAULTS
from trainwiz.engines.torch import OPTIMIZER_DEFAULTS
from trainwiz.script import counted_loop, lightning, trainers
from trainwiz.script.arguments import Number, is_trainer, keyword, number, of_trainer, read, typed
from trainwiz.script.tree import Loop, constant, dotted, written

if TYPE_CHECKING:
    from trainwiz.script import Call, Script

_OPTIMIZERS = {
    "torch.optim.AdamW": "AdamW",
    "torch.optim.Adam": "Adam",
    "torch.optim.SGD": "SGD",
}
_SAME = ("params", "fused", "foreach", "capturable", "differentiable")
_SEEDS = (
    "accelerate.utils.set_seed",
    "transformers.set_seed",
    "torch.manual_seed",
    "lightning.seed_everything",
    "pytorch_lightning.seed_everything",
)


def numbers(script: Script) -> list[Number]:
    """Everything that could be found, readable or not; of what is said in several places, all of them."""
    told = typed(script)
    trainer = [call for call in script.calls if is_trainer(call.name)] or ([told] if told else [])
    if trainer:
        seeds = list(_of_seeds(script))  # the model's weights come from this one, where there is another
        return [*seeds, *(n for call in trainer for n in of_trainer(script, call) if not (seeds and n.kind == "seed"))]
    made = trainers.of(script)
    if made is not None and made.is_usual and made.call.argument("args", 1) is None and not made.call.has_spread():
        return [*_of_seeds(script), *of_trainer(script, made.call, usual=True), *_of_lengths(script)]
    return [
        *lightning.numbers(script),
        *_of_accelerator(script),
        *_of_loaders(script),
        *_of_optimizers(script),
        *_of_schedules(script),
        *_of_clipping(script),
        *_of_epochs(script),
        *_of_seeds(script),
        *_of_lengths(script),
    ]


def _of_accelerator(script: Script) -> Iterator[Number]:
    for call in script.called("accelerate.Accelerator"):
        steps, precision = call.keyword("gradient_accumulation_steps"), call.keyword("mixed_precision")
        named = "Accelerator(gradient_accumulation_steps)"
        if steps is not None or not (call.keyword("gradient_accumulation_plugin") or script.training.windows):
            default = None if call.has_spread() else 1
            yield from number(script, "accumulation", named, steps, default, call.node, "accelerate")
        if precision is not None:
            value = script.values.of(precision)
            if value is None or value.value is not None:
                yield from number(script, "precision", "Accelerator(mixed_precision)", precision, None, call.node, "")
    for call in script.called("accelerate.utils.GradientAccumulationPlugin"):
        given, named = call.argument("num_steps", 0), "GradientAccumulationPlugin(num_steps)"
        yield from number(script, "accumulation", named, given, None, call.node, "")
    for window in script.training.windows:
        yield from number(script, "accumulation", written(window.test), window.size, None, window.step, "")


def _of_loaders(script: Script) -> Iterator[Number]:
    loaders = script.called("DataLoader", "torch.utils.data.DataLoader")
    if only := counted_loop.loop(script):
        yield Number(kind="micro_batch", name=f"for … in {written(only.iter)}", node=only, value=1)
    chosen = [c for c in loaders if "train" in _target(script, c.node).lower()]
    chosen = chosen or [c for c in loaders if _true(script, c.keyword("shuffle"))] or loaders
    split = any(_true(script, c.keyword("split_batches")) for c in script.calls)
    for call in chosen:
        given = call.argument("batch_size", 1) or keyword(script, call, "batch_size")
        if split and given is not None:
            yield Number(kind="micro_batch", name="split_batches", node=given)
        elif given is not None or call.keyword("batch_sampler") is None:
            default = None if call.has_spread() else 1
            yield from number(script, "micro_batch", "DataLoader(batch_size)", given, default, call.node, "torch")


def _of_optimizers(script: Script) -> Iterator[Number]:
    defaults: Mapping[str, Any]
    for call in script.calls:
        functions = _functions(script, call)
        kinds = [_OPTIMIZERS[name] for name in functions if name in _OPTIMIZERS]
        last = functions[0].rpartition(".")[2]
        if kinds or script.engines.makes_optimizer(call.node):
            last = kinds[0] if kinds else last
            defaults, owner = OPTIMIZER_DEFAULTS.get(last, {}), "torch"
            yield Number(kind="optimizer", name=last, node=call.node, value=kinds[0] if kinds else None)
        elif last == "DummyOptim":
            defaults, owner = DUMMY_OPTIMIZER_DEFAULTS, "accelerate"
        else:
            continue
        if call.has_spread():
            defaults = dict.fromkeys(defaults)
        rate = call.argument("lr", 1)
        yield from number(script, "learning_rate", f"{last}(lr)", rate, defaults.get("lr"), call.node, owner)
        yield from _weight_decay(script, call, last, defaults.get("weight_decay"), owner)
        yield from _moments(script, call, last, defaults)
        yield from _further(call, last, defaults)


def _functions(script: Script, call: Call) -> list[str]:
    """What may be called: `make = AdamW if … else DummyOptim` and then `make(…)` is either of them."""
    named = call.node.func
    assigned = script.names.assigned(named.id, named) if isinstance(named, ast.Name) else []
    found = [named, *(a.value for a in assigned if a.alone)]
    either = [part for node in found for part in ((node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,))]
    return [script.names.resolved(node) for node in reversed(either)]


def _weight_decay(script: Script, call: Call, last: str, default: Any, owner: str) -> Iterator[Number]:
    name = f"{last}(weight_decay)"
    given = [g for g in (*_groups(script, call), call.keyword("weight_decay")) if g is not None]
    if not given:
        yield from number(script, "weight_decay", name, None, default, call.node, owner)
        return
    values = [script.values.of(g) for g in given]
    # Groups without decay (biases, norms) stand beside the one that counts.
    decayed = [v for v in values if v is None or v.value != 0] or values
    first = decayed[0]
    if first and all(other and other.value == first.value for other in decayed):
        yield read("weight_decay", name, first)
    else:
        yield Number(kind="weight_decay", name=name, node=given[0])


def _groups(script: Script, call: Call) -> list[ast.expr]:
    """What the parameter groups of an optimizer say, where they are written out as dictionaries."""
    found = []
    for node in script.names.feeding(call.node.args[0], call.node) if call.node.args else ():
        if isinstance(node, ast.Dict):
            found += [v for k, v in zip(node.keys, node.values, strict=True) if constant(k) == "weight_decay"]
    return found


def _moments(script: Script, call: Call, last: str, defaults: Mapping[str, Any]) -> Iterator[Number]:
    """An optimizer's betas, and its epsilon."""
    for name, kind in (("momentum", "beta1"), ("eps", "epsilon")):
        if name in defaults:
            given = call.keyword(name)
            yield from number(script, kind, f"{last}({name})", given, defaults[name], call.node, "torch")
    if "betas" not in defaults:
        return
    name, given, kinds = f"{last}(betas)", call.keyword("betas"), ("beta1", "beta2")
    if isinstance(given, ast.Tuple | ast.List) and len(given.elts) == len(kinds):
        for kind, part in zip(kinds, given.elts, strict=True):
            yield from number(script, kind, name, part, None, call.node, "")
    elif given is not None:
        yield from (Number(kind=kind, name=name, node=given) for kind in kinds)
    elif defaults["betas"] is not None:
        for kind, value in zip(kinds, defaults["betas"], strict=True):
            yield Number(kind=kind, name=name, node=call.node, value=value, left_out="torch")


def _further(call: Call, last: str, defaults: Mapping[str, Any]) -> Iterator[Number]:
    """What else changes an update: nesterov, amsgrad. Those of `_SAME` only change how fast it is computed."""
    for one in call.node.keywords if defaults else ():
        off = isinstance(one.value, ast.Constant) and not one.value.value
        if one.arg and one.arg not in {*defaults, *_SAME} and not off:
            yield Number(kind="setting", name=f"{last}({one.arg})", node=one.value)


def _of_schedules(script: Script) -> Iterator[Number]:
    made = lightning.of(script)
    found = list(_schedules(script))
    if made is not None and not lightning.steps_by_update(made):
        found = [replace(one, value=None) for one in found]  # a schedule that counts epochs
    yield from found
    step: ast.Call | None = next(iter((*script.training.steps, *([made.trainer.node] if made else ()))), None)
    by_hand = next((node for node in script.tree.of(ast.Subscript) if _sets_rate(node)), None)
    if not found and by_hand is not None:
        yield Number(kind="schedule", name=written(by_hand), node=by_hand)
    elif not found and step is not None:
        for kind, value in (("schedule", "constant"), ("warmup", 0)):
            yield Number(kind=kind, name=written(step.func), node=step, value=value, left_out="script")


def _sets_rate(node: ast.Subscript) -> bool:
    """Whether it is `group["lr"] = …`."""
    return isinstance(node.ctx, ast.Store) and constant(node.slice) == "lr"


def _schedules(script: Script) -> Iterator[Number]:
    for call in script.calls:
        last = call.last
        if last in ("get_scheduler", "DummyScheduler"):
            if last == "get_scheduler":
                name = call.argument("name", 0)
                yield from number(script, "schedule", "get_scheduler(name)", name, None, call.node, "")
            place = 2
        elif last == "get_constant_schedule" or (last.startswith("get_") and last.endswith("_schedule_with_warmup")):
            shape = last.removeprefix("get_").removesuffix("_with_warmup").removesuffix("_schedule")
            yield Number(kind="schedule", name=last, node=call.node, value=shape)
            place = 1
        else:
            if script.engines.kind(call.node) == "Scheduler":
                yield Number(kind="schedule", name=last, node=call.node)
            continue
        warmup = call.keyword("warmup_num_steps") or call.argument("num_warmup_steps", place)
        if last == "get_constant_schedule":
            yield Number(kind="warmup", name=last, node=call.node, value=0)
        else:
            yield from number(script, "warmup", f"{last}(num_warmup_steps)", warmup, None, call.node, "")


def _of_clipping(script: Script) -> Iterator[Number]:
    calls = [c for c in script.calls if c.last in ("clip_grad_norm_", "clip_grad_value_")]
    for call in calls:
        if call.last == "clip_grad_norm_":
            yield from number(script, "clipping", call.last, call.argument("max_norm", 1), None, call.node, "")
        else:
            yield Number(kind="clipping", name=call.last, node=call.node)
    if not calls and script.training.steps:
        step = script.training.steps[0]
        yield Number(kind="clipping", name=written(step.func), node=step, value=0.0, left_out="script")


def _of_epochs(script: Script) -> Iterator[Number]:
    """The loop over epochs: of those around micro-batches the one that is called so, else the outermost."""
    loops: dict[Loop, None] = {}
    for backward in script.training.backwards:
        around = script.tree.loops_around(backward.call)
        around = around if around == [counted_loop.loop(script)] else around[1:]
        named = [loop for loop in around if isinstance(loop, ast.For) and "epoch" in written(loop.target).lower()]
        loops |= dict.fromkeys((named or around)[-1:])
    for loop in loops:
        source = loop.iter if isinstance(loop, ast.For | ast.AsyncFor) else None
        while isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] == "tqdm" and source.args:
            source = source.args[0]
        ranges = isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] in ("range", "trange")
        if ranges and isinstance(source, ast.Call) and source.args:
            # range(start, epochs) goes on after a resume; a whole training is all of them. range(1, …) only counts.
            start = constant(source.args[0]) if len(source.args) > 1 else 0
            for one in _epochs(script, f"for … in {written(source)}", source.args[:2][-1], loop):
                counts = one.kind == "epochs" and isinstance(start, int) and isinstance(one.value, int)
                yield replace(one, value=one.value - start) if counts else one


def _epochs(script: Script, name: str, given: ast.expr, loop: ast.AST) -> Iterator[Number]:
    steps = next((s for s in map(script.values.default_of, ("max_train_steps", "max_steps")) if s), None)
    if steps and isinstance(steps.value, int):
        yield read("steps", f"args.{steps.option.lstrip('-')}", steps)
        return
    option = script.values.default_of(given.attr) if isinstance(given, ast.Attribute) else None
    if script.values.of(given) is None and option and option.value is not None and steps:
        # The usual scripts compute the epochs anew from the steps, which gives what was asked where no steps are.
        yield read("epochs", name, option)
    else:
        yield from number(script, "epochs", name, given, None, loop, "")


def _of_seeds(script: Script) -> Iterator[Number]:
    for call in script.called(*_SEEDS):
        yield from number(script, "seed", call.last, call.argument("seed", 0), None, call.node, "")


def _of_lengths(script: Script) -> Iterator[Number]:
    """How long a tokenizer lets samples be."""
    for call in script.calls:
        given = call.keyword("max_length")
        if given is not None and call.keyword("truncation") is not None:
            value = script.values.of(given)
            if value and isinstance(value.value, int) and not isinstance(value.value, bool):
                yield read("sequence_length", "max_length", value)


def _target(script: Script, node: ast.AST) -> str:
    """The name that a call's result gets."""
    for group in script.names.assignments.values():
        for assignment in group:
            if assignment.value is node:
                return assignment.name
    return ""


def _true(script: Script, node: ast.expr | None) -> bool:
    value = script.values.of(node)
    return bool(value and value.value is True)
