"""What a script says, for the keys of a plan that no file decides: above all those where the file says auto."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainwiz.adoption import optimizer
from trainwiz.adoption.ledger import Ledger
from trainwiz.adoption.settings import Settings
from trainwiz.config import Accelerate
from trainwiz.message import Message, say
from trainwiz.script import Script, lightning, trainers
from trainwiz.script.arguments import Number
from trainwiz.script.numbers import numbers
from trainwiz.script.pieces import pieces, weighs_classes
from trainwiz.script.tree import dotted

OPTIMIZERS = {
    "AdamW": "adamw",
    "Adam": "adamw",
    "SGD": "sgd",
    "adamw_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}
"""The plan's name of an optimizer, by torch's class or by itself."""
_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
_WITH = {
    "batch.real_batch_size": ("batch.per_device_batch_size", "batch.gradient_accumulation_steps"),
    "schedule.n_steps": ("schedule.n_epochs",),
}
"""Keys that are no longer open once others are decided."""
_BATCH = ("batch.per_device_batch_size", "batch.real_batch_size")
_LENGTH = ("schedule.n_steps", "schedule.n_epochs")
_OPTIMIZER = ("optimizer.name", "optimizer.learning_rate")


@dataclass(frozen=True)
class _Key:
    name: str
    """The plan's key."""
    made: Callable[[Any], Any]
    """The plan's value; None where a plan cannot have it."""


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else int(value) if isinstance(value, float) and value.is_integer() else None


def _or_zero(value: Any) -> int | None:
    return 0 if value == 0 and not isinstance(value, bool) else _count(value)


def _real(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None


def _share(value: Any) -> float | None:
    number = _real(value)
    return number if number is not None and number < 1 else None


_KEYS = {
    "micro_batch": _Key("batch.per_device_batch_size", _count),
    "accumulation": _Key("batch.gradient_accumulation_steps", _count),
    "sequence_length": _Key("batch.sequence_length", _count),
    "optimizer": _Key("optimizer.name", OPTIMIZERS.get),
    "learning_rate": _Key("optimizer.learning_rate", _real),
    "weight_decay": _Key("optimizer.weight_decay", _real),
    "beta1": _Key("optimizer.beta1", _share),
    "beta2": _Key("optimizer.beta2", _share),
    "epsilon": _Key("optimizer.epsilon", lambda value: _real(value) or None),
    "clipping": _Key("optimizer.gradient_clipping", _real),
    "precision": _Key("precision.mixed_precision", lambda value: value if value in ("no", "fp16", "bf16") else None),
    "steps": _Key("schedule.n_steps", _count),
    "epochs": _Key("schedule.n_epochs", _count),
    "warmup": _Key("schedule.n_warmup_steps", _or_zero),
    "warmup_ratio": _Key("schedule.warmup_ratio", _share),
    "schedule": _Key("schedule.lr_scheduler_type", lambda value: _SCHEDULES.get(str(value).lower())),
    "seed": _Key("seed", _or_zero),
}


def read(ledger: Ledger, script: Script, accelerate: Accelerate | None, settings: Settings | None) -> None:
    """Enter what the script says where no file does, and report who decides the rest."""
    found: dict[str, list[Number]] = {}
    for number in numbers(script):
        found.setdefault(number.kind, []).append(number)
    if settings is not None and script.engines.accelerate:
        _clipped_by_accelerate(ledger, script, found)
    for kind, key in _KEYS.items():
        if kind == "epochs" and "schedule.n_steps" in ledger.carried:
            continue
        if given := found.get(kind):
            _enter(ledger, script, key, given, accelerate)
    for number in found.get("setting", []):
        why = say("a plan has no such setting; write build_optimizers in task.py")
        ledger.add("lost", number.name, _source(script, number), script.place(number.node), why, key="optimizer.name")
    optimizer.leave_usual(ledger)
    _name_what_was_not_found(ledger, script)
    if accelerate is None and settings is None and not script.engines.several:
        _of_one_process(ledger, script)
    for name, others in _WITH.items():
        if all(other in ledger.carried for other in others):
            ledger.settle(name)


def _name_what_was_not_found(ledger: Ledger, script: Script) -> None:
    """Batch and length belong to every training loop: where the script's were not found, the plan has its own."""
    backward = _training(script)
    if backward is None:
        return
    loader = next((call.node for call in script.called("DataLoader", "torch.utils.data.DataLoader")), backward)
    known = {*ledger.carried, *(one.key for one in ledger.left)}
    for name, keys, node, why in (
        ("batch_size", _BATCH, loader, say("the batch size of the training data was not found in the script")),
        ("epochs", _LENGTH, backward, say("no enclosing epoch loop with a readable number of epochs was found")),
        ("optimizer", _OPTIMIZER, backward, say("what makes the optimizer was not found in the script")),
    ):
        if known.isdisjoint(keys):
            ledger.open(keys[0], name, _line(script, node), script.place(node), why)


def _training(script: Script) -> ast.AST | None:
    """Where it trains: its first backward pass, or the Trainer of a library."""
    if script.training.backwards:
        return script.training.backwards[0].call
    found = lightning.of(script)
    if found is not None:
        return found.trainer.node
    made = trainers.of(script)
    return made.call.node if made is not None else None


def _line(script: Script, node: ast.AST) -> str:
    return " ".join(script.lines[script.place(node).line - 1].split())


def _of_one_process(ledger: Ledger, script: Script) -> None:
    """What a script takes for an update by itself is the real batch, however many ranks share it here."""
    batch, steps = (ledger.carried.get(key) for key in _WITH["batch.real_batch_size"])
    if batch is None or any(one.key == "batch.gradient_accumulation_steps" for one in ledger.left):
        return
    why = say("the script trains in one process")
    size = batch.value * (steps.value if steps else 1)
    for key in _WITH["batch.real_batch_size"]:
        ledger.carried.pop(key, None)
    ledger.fill("batch.real_batch_size", size, batch.place, batch.path, why)
    mean = pieces(script).mean
    weighs = weighs_classes(script) or (mean is not None and mean.over is None)
    if weighs or _normalizes_batches(script):
        why = say("batch normalization uses the statistics of a micro-batch")
        why = say("its loss divides by the weights or labels of a micro-batch") if weighs else why
        ledger.fill("batch.per_device_batch_size", batch.value, batch.place, batch.path, why)


def _normalizes_batches(script: Script) -> bool:
    """Whether layers of its model compute with the samples of a micro-batch together; most of torchvision do."""
    names = (dotted(node) for node in (*script.tree.of(ast.Attribute), *script.tree.of(ast.Name)))
    return any("BatchNorm" in name for name in names) or any("torchvision.models" in c.name for c in script.calls)


def _enter(ledger: Ledger, script: Script, key: _Key, given: list[Number], accelerate: Accelerate | None) -> None:
    values = {key.made(number.value) if number.value is not None else None for number in given}
    unread = next((n for n in given if n.value is None or key.made(n.value) is None), None)
    first, place = given[0], script.place(given[0].node)
    if unread is not None or len(values) > 1:
        shown = unread or first
        why = _why_unread(key.name, shown, several=unread is None)
        ledger.open(key.name, shown.name, _source(script, shown), script.place(shown.node), why)
        return
    (value,) = values
    file = ledger.carried.get(key.name)
    if file is None:
        ledger.fill(key.name, value, place, first.name, _why(first))
    elif file.value == value or first.left_out:
        return
    elif key.name == "precision.mixed_precision" and accelerate and file.place.file == accelerate.document.path:
        # `Accelerator(mixed_precision=…)` is stronger than accelerate's file.
        ledger.replace(
            key.name,
            value,
            place,
            first.name,
            _why(first),
            say("the script sets {value}, which takes precedence", value=str(value)),
        )
    else:
        at = f"{file.place.file.rpartition('/')[2]}:{file.place.line}"
        ledger.add(
            "lost", first.name, _shown(first.value), place, say("already set in {place}", place=at), key=key.name
        )


def _why(number: Number) -> Message | None:
    if number.left_out == "script" and number.kind == "clipping":
        return say("the script does not clip gradients")
    if number.left_out == "script":
        return say("the script has no schedule")
    if number.left_out:
        return say("not set; {owner} defaults to {value}", owner=number.left_out, value=_shown(number.value))
    return say("the default of {option}", option=number.option) if number.option else None


def _why_unread(key: str, number: Number, *, several: bool) -> Message:
    if several:
        return say("the script sets several different values")
    if key == "schedule.n_warmup_steps" and isinstance(number.value, float):
        return say("it is a fraction of the updates; a plan needs a number of updates")
    if number.name == "split_batches":
        return say("with split_batches, the DataLoader's batch size covers all ranks")
    if key == "optimizer.name":
        return say("only adamw and sgd can be imported, not {kind}; set optimizer.name yourself", kind=number.name)
    if key == "schedule.lr_scheduler_type":
        kind = str(number.value or number.name)
        return say(
            "only constant, linear and cosine can be imported, not {kind}; set schedule.lr_scheduler_type yourself",
            kind=kind,
        )
    return say("the value is computed, or differs between code paths")


def _clipped_by_accelerate(ledger: Ledger, script: Script, found: dict[str, list[Number]]) -> None:
    """Under DeepSpeed, accelerate's clip_grad_norm_ clips nothing, and accelerate puts 1.0 for auto."""
    trainer = any(number.name.endswith("(max_grad_norm)") for number in found.get("clipping", ()))
    if trainer or not script.called("accelerate.Accelerator"):
        return
    for number in found.pop("clipping", []):
        if not number.left_out:
            why = say("under DeepSpeed, clipping is set in the DeepSpeed configuration")
            ledger.add("inert", number.name, _source(script, number), script.place(number.node), why)
    place = script.place(script.called("accelerate.Accelerator")[0].node)
    ledger.fill("optimizer.gradient_clipping", 1.0, place, "Accelerator", say("accelerate replaces auto with 1.0"))


def _source(script: Script, number: Number) -> str:
    if number.value is not None:
        return _shown(number.value)
    place = script.place(number.node)
    line = script.lines[place.line - 1] if place.line <= len(script.lines) else ""
    return " ".join(line[place.column - 1 : place.column - 1 + place.width].split())


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
