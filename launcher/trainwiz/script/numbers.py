"""The numbers that a script trains with: batch, accumulation, learning rate, schedule, clipping, precision.

Each stands where an engine would take it from: the Accelerator, the DataLoader, the optimizer, the schedule, the
clipping call, the loop over epochs, or the arguments of a Trainer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz.script.tree import Loop, dotted
from trainwiz.script.values import Value

if TYPE_CHECKING:
    from trainwiz.script import Call, Script

TRAINER_DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 5e-5, "weight_decay": 0.0,
    "max_grad_norm": 1.0, "num_train_epochs": 3.0, "max_steps": -1, "warmup_steps": 0, "lr_scheduler_type": "linear",
    "seed": 42,
}  # fmt: skip
"""What transformers' TrainingArguments (5.23) take where nothing is given."""
_TRAINERS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_OF_TRAINER = {
    "per_device_train_batch_size": "micro_batch", "gradient_accumulation_steps": "accumulation",
    "learning_rate": "learning_rate", "weight_decay": "weight_decay", "max_grad_norm": "clipping", "seed": "seed",
    "lr_scheduler_type": "schedule", "warmup_steps": "warmup", "max_length": "sequence_length",
    "max_seq_length": "sequence_length",
}  # fmt: skip
OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 1e-3, "weight_decay": 1e-2, "betas": (0.9, 0.999)},
    "Adam": {"lr": 1e-3, "weight_decay": 0.0, "betas": (0.9, 0.999)},
    "SGD": {"lr": 1e-3, "weight_decay": 0.0, "momentum": 0.0},
}
"""torch 2.13's own."""
_DUMMY_DEFAULTS = {"lr": 1e-3, "weight_decay": 0.0}
"""accelerate 1.15's own."""
_OPTIMIZERS = {"torch.optim.AdamW": "AdamW", "torch.optim.adamw.AdamW": "AdamW", "torch.optim.Adam": "Adam",
               "torch.optim.adam.Adam": "Adam", "torch.optim.SGD": "SGD", "torch.optim.sgd.SGD": "SGD"}  # fmt: skip
_SEEDS = ("accelerate.utils.set_seed", "transformers.set_seed", "transformers.trainer_utils.set_seed",
          "torch.manual_seed", "lightning.seed_everything", "pytorch_lightning.seed_everything")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Number:
    """One thing that a script says: `name` as in `AdamW(lr)`, `value` None where it cannot be read.

    `left_out` names who decides instead, where the script leaves it to a default of theirs.
    """

    kind: str
    name: str
    node: ast.AST
    value: Any = None
    option: str = ""
    left_out: str = ""


def numbers(script: Script) -> list[Number]:
    """Everything that could be found, readable or not; of what is said in several places, all of them."""
    trainer = [call for call in script.calls if _is_trainer(call.name)]
    if trainer:
        return [n for call in trainer for n in _of_trainer(script, call)]
    return [
        *_of_accelerator(script), *_of_loaders(script), *_of_optimizers(script), *_of_schedules(script),
        *_of_clipping(script), *_of_epochs(script), *_of_seeds(script), *_of_lengths(script),
    ]  # fmt: skip


def _is_trainer(name: str) -> bool:
    return name in _TRAINERS or (name.startswith("trl.") and name.endswith("Config"))


def _number(script: Script, kind: str, name: str, given: ast.expr | None, default: Any, call: ast.AST,
            owner: str) -> Iterator[Number]:  # fmt: skip
    """What an argument says, or what its owner takes without it; nothing where neither is known."""
    if given is None:
        if default is not None:
            yield Number(kind=kind, name=name, node=call, value=default, left_out=owner)
        return
    value = script.values.of(given)
    if value is None or value.value is None:
        # Given as None, on purpose or by an option's default, is as good as not given.
        if value is None or default is None:
            yield Number(kind=kind, name=name, node=given)
        else:
            yield Number(kind=kind, name=name, node=call, value=default, left_out=owner)
        return
    yield _read(kind, name, value)


def _read(kind: str, name: str, value: Value) -> Number:
    return Number(kind=kind, name=name, node=value.node, value=value.value, option=value.option)


def _of_trainer(script: Script, call: Call) -> Iterator[Number]:
    owner = "transformers" if call.name in _TRAINERS else ""
    last = call.name.rpartition(".")[2]
    for argument, kind in _OF_TRAINER.items():
        default = TRAINER_DEFAULTS.get(argument) if owner and not call.has_spread() else None
        name = f"{last}({argument})"
        if argument == "warmup_steps" and call.keyword("warmup_ratio") is not None:
            yield Number(kind=kind, name=f"{last}(warmup_ratio)", node=call.keyword("warmup_ratio") or call.node)
            continue
        yield from _number(script, kind, name, call.keyword(argument), default, call.node, owner)
    for precision in ("bf16", "fp16"):
        value = script.values.of(call.keyword(precision))
        if value and value.value is True:
            yield Number(kind="precision", name=f"{last}({precision})", node=value.node, value=precision,
                         option=value.option)  # fmt: skip
    steps = script.values.of(call.keyword("max_steps"))
    if steps and isinstance(steps.value, int) and steps.value > 0:
        yield _read("steps", f"{last}(max_steps)", steps)
    elif call.keyword("max_steps") is None or steps:
        default = TRAINER_DEFAULTS["num_train_epochs"] if owner and not call.has_spread() else None
        given = call.keyword("num_train_epochs")
        yield from _number(script, "epochs", f"{last}(num_train_epochs)", given, default, call.node, owner)


def _of_accelerator(script: Script) -> Iterator[Number]:
    for call in script.called("accelerate.Accelerator", "accelerate.accelerator.Accelerator"):
        steps, precision = call.keyword("gradient_accumulation_steps"), call.keyword("mixed_precision")
        named = "Accelerator(gradient_accumulation_steps)"
        if steps is not None or not (call.keyword("gradient_accumulation_plugin") or script.training.windows):
            default = None if call.has_spread() else 1
            yield from _number(script, "accumulation", named, steps, default, call.node, "accelerate")
        if precision is not None:
            value = script.values.of(precision)
            if value is None or value.value is not None:
                yield from _number(script, "precision", "Accelerator(mixed_precision)", precision, None, call.node, "")
    for call in script.called("accelerate.utils.GradientAccumulationPlugin"):
        given = call.keyword("num_steps") or next(iter(call.node.args), None)
        named = "GradientAccumulationPlugin(num_steps)"
        yield from _number(script, "accumulation", named, given, None, call.node, "")
    for window in script.training.windows:
        yield from _number(script, "accumulation", ast.unparse(window.test), window.size, None, window.step, "")


def _of_loaders(script: Script) -> Iterator[Number]:
    loaders = script.called("DataLoader", "torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
    chosen = [c for c in loaders if "train" in _target(script, c.node).lower()]
    chosen = chosen or [c for c in loaders if _true(script, c.keyword("shuffle"))] or loaders
    split = any(_true(script, c.keyword("split_batches")) for c in script.calls)
    for call in chosen:
        given = call.keyword("batch_size") or next(iter(call.node.args[1:2]), None)
        if split and given is not None:
            yield Number(kind="micro_batch", name="split_batches", node=given)
        elif given is not None or call.keyword("batch_sampler") is None:
            default = None if call.has_spread() else 1
            yield from _number(script, "micro_batch", "DataLoader(batch_size)", given, default, call.node, "torch")


def _of_optimizers(script: Script) -> Iterator[Number]:
    defaults: Mapping[str, Any]
    for call in script.calls:
        function = script.names.resolved(call.node.func)
        last = function.rpartition(".")[2]
        if last == "DummyOptim":
            defaults, owner = _DUMMY_DEFAULTS, "accelerate"
        elif script.engines.kind(call.node) == "Optimizer":
            kind = _OPTIMIZERS.get(function)
            defaults, owner = OPTIMIZER_DEFAULTS.get(kind or "", {}), "torch"
            yield Number(kind="optimizer", name=last, node=call.node, value=kind)
        else:
            continue
        if call.has_spread():
            defaults = dict.fromkeys(defaults)
        rate = call.keyword("lr") or next(iter(call.node.args[1:2]), None)
        yield from _number(script, "learning_rate", f"{last}(lr)", rate, defaults.get("lr"), call.node, owner)
        yield from _weight_decay(script, call, last, defaults.get("weight_decay"), owner)
        for name in ("betas", "momentum"):
            if name in defaults:
                yield from _literal(script, call, f"{last}({name})", name, defaults[name])


def _weight_decay(script: Script, call: Call, last: str, default: Any, owner: str) -> Iterator[Number]:
    name = f"{last}(weight_decay)"
    given = [g for g in (*_groups(script, call), call.keyword("weight_decay")) if g is not None]
    if not given:
        yield from _number(script, "weight_decay", name, None, default, call.node, owner)
        return
    values = [script.values.of(g) for g in given]
    # Groups without decay (biases, norms) stand beside the one that counts.
    decayed = [v for v in values if v is None or v.value != 0] or values
    first = decayed[0]
    if first and all(other and other.value == first.value for other in decayed):
        yield _read("weight_decay", name, first)
    else:
        yield Number(kind="weight_decay", name=name, node=given[0])


def _groups(script: Script, call: Call) -> list[ast.expr]:
    """What the parameter groups of an optimizer say, where they are written out as dictionaries."""
    found = []
    for node in script.names.feeding(call.node.args[0], call.node) if call.node.args else ():
        if isinstance(node, ast.Dict):
            found += [v for k, v in zip(node.keys, node.values, strict=True)
                      if isinstance(k, ast.Constant) and k.value == "weight_decay"]  # fmt: skip
    return found


def _literal(script: Script, call: Call, name: str, kind: str, default: Any) -> Iterator[Number]:
    given = call.keyword(kind)
    if given is None:
        if default is not None:
            yield Number(kind=kind, name=name, node=call.node, value=default, left_out="torch")
        return
    parts: Sequence[ast.expr] = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
    known = [v.value for part in parts if (v := script.values.of(part)) is not None]
    if len(known) == len(parts):
        yield Number(kind=kind, name=name, node=given, value=tuple(known) if len(known) > 1 else known[0])


def _of_schedules(script: Script) -> Iterator[Number]:
    for call in script.calls:
        last = call.name.rpartition(".")[2]
        if last in ("get_scheduler", "DummyScheduler"):
            name = call.keyword("name") or next(iter(call.node.args[:1]), None)
            if last == "get_scheduler":
                yield from _number(script, "schedule", "get_scheduler(name)", name, None, call.node, "")
            place = 2
        elif last.startswith("get_") and last.endswith("_schedule_with_warmup"):
            shape = last.removeprefix("get_").removesuffix("_schedule_with_warmup")
            yield Number(kind="schedule", name=last, node=call.node, value=shape)
            place = 1
        else:
            if script.engines.kind(call.node) == "Scheduler":
                yield Number(kind="schedule", name=last, node=call.node)
            continue
        warmup = call.keyword("num_warmup_steps") or call.keyword("warmup_num_steps")
        warmup = warmup or next(iter(call.node.args[place : place + 1]), None)
        yield from _number(script, "warmup", f"{last}(num_warmup_steps)", warmup, None, call.node, "")


def _of_clipping(script: Script) -> Iterator[Number]:
    calls = [c for c in script.calls if c.name.rpartition(".")[2] in ("clip_grad_norm_", "clip_grad_value_")]
    for call in calls:
        last = call.name.rpartition(".")[2]
        if last == "clip_grad_norm_":
            given = call.keyword("max_norm") or next(iter(call.node.args[1:2]), None)
            yield from _number(script, "clipping", "clip_grad_norm_", given, None, call.node, "")
        else:
            yield Number(kind="clipping", name=last, node=call.node)
    if not calls and script.training.steps:
        step = script.training.steps[0]
        yield Number(kind="clipping", name="step", node=step, value=0.0, left_out="script")


def _of_epochs(script: Script) -> Iterator[Number]:
    """The loop around the one over micro-batches."""
    loops: dict[Loop, None] = {}
    for backward in script.training.backwards:
        around = script.tree.loops(backward.call)[1:]
        loops |= dict.fromkeys(around[:1])
    for loop in loops:
        source = loop.iter if isinstance(loop, ast.For | ast.AsyncFor) else None
        while (
            isinstance(source, ast.Call)
            and dotted(source.func).rpartition(".")[2] in ("tqdm", "trange")
            and source.args
        ):
            if dotted(source.func).rpartition(".")[2] == "trange":
                break
            source = source.args[0]
        if isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] in ("range", "trange"):
            # range(start, epochs) goes on after a resume; a whole training is all of them.
            given = source.args[min(1, len(source.args) - 1)] if source.args else None
            words = f"for {ast.unparse(loop.target)} in {ast.unparse(source)}"  # type: ignore[union-attr]
            yield from _number(script, "epochs", words, given, None, loop, "")


def _of_seeds(script: Script) -> Iterator[Number]:
    for call in script.called(*_SEEDS):
        given = call.keyword("seed") or next(iter(call.node.args), None)
        yield from _number(script, "seed", call.name.rpartition(".")[2], given, None, call.node, "")


def _of_lengths(script: Script) -> Iterator[Number]:
    """How long a tokenizer lets samples be."""
    for call in script.calls:
        given = call.keyword("max_length")
        if given is not None and call.keyword("truncation") is not None:
            value = script.values.of(given)
            if value and isinstance(value.value, int) and not isinstance(value.value, bool):
                yield _read("sequence_length", "max_length", value)


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
