"""What the arguments of a call say, and those of a Trainer above all."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainwiz.engines.transformers import OPTIMIZERS, TRAINER_DEFAULTS
from trainwiz.engines.trl import RATES
from trainwiz.script.calls import Call
from trainwiz.script.tree import constant, dotted
from trainwiz.script.values import Value

if TYPE_CHECKING:
    from trainwiz.script import Script

_KEPT_BY_TRL = ("weight_decay", "seed")
"""Of the defaults, what all of TRL's configurations, which inherit them, leave as it is."""
_TRAINERS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_OF_TRAINER = {
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "max_grad_norm": "clipping",
    "seed": "seed",
    "lr_scheduler_type": "schedule",
    "warmup_steps": "warmup",
    "max_length": "sequence_length",
    "max_seq_length": "sequence_length",
}

READ_OF_TRAINER = (
    *(*_OF_TRAINER, "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "fp16", "max_steps", "num_train_epochs"),
    *("optim", "warmup_ratio"),
)
"""The arguments of a Trainer that become numbers."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number of the training that a script gives."""

    kind: str
    """What it is, like `learning_rate`."""
    name: str
    """Where it is given, as people read it: `AdamW(lr)`."""
    node: ast.AST
    """The expression, or the call that leaves it out."""
    value: Any = None
    """Its value; None where it cannot be read."""
    option: str = ""
    """The option of the command line that it is the default of."""
    left_out: str = ""
    """Whose default counts, where the script leaves it out."""


def number(
    script: Script, kind: str, name: str, given: ast.expr | None, default: Any, call: ast.AST, owner: str
) -> Iterator[Number]:
    """What an argument says, or what its owner takes without it; nothing where neither is known."""
    if given is None:
        if default is not None:
            yield Number(kind=kind, name=name, node=call, value=default, left_out=owner)
        return
    value = script.values.of(given)
    if value is None:
        yield Number(kind=kind, name=name, node=given)
    elif value.value is not None:
        yield read(kind, name, value)
    elif default is not None:
        # Given as None, on purpose or by an option's default, is as good as not given.
        yield Number(kind=kind, name=name, node=call, value=default, left_out=owner)


def keyword(script: Script, call: Call, name: str) -> ast.expr | None:
    """The value of a keyword argument, also where it stands in a dictionary: `DataLoader(data, **{"batch_size": 64})`.

    None where it is not given, or by several dictionaries.
    """
    given = call.keyword(name)
    found = [] if given is not None else [v for spread in call.spreads for v in _items(script, spread, name)]
    return given if given is not None else found[0] if len(found) == 1 else None


def _items(script: Script, spread: ast.expr, name: str) -> list[ast.expr]:
    """What the dictionaries behind `**kwargs` give this key, those that update it included."""
    dicts, found = [spread], list[ast.expr]()
    if isinstance(spread, ast.Name):
        dicts = [one.value for one in script.names.assigned(spread.id, spread) if one.value is not None]
        updates = (
            call for call in script.calls if call.method == "update" and dotted(call.node.func) == f"{spread.id}.update"
        )
        found += [value for call in updates for part in call.node.args for value in _items(script, part, name)]
    for node in dicts:
        if isinstance(node, ast.Dict):
            found += [v for k, v in zip(node.keys, node.values, strict=True) if constant(k) == name]
        elif isinstance(node, ast.Call) and dotted(node.func) == "dict":
            found += [one.value for one in node.keywords if one.arg == name]
    return found


def read(kind: str, name: str, value: Value) -> Number:
    return Number(kind=kind, name=name, node=value.node, value=value.value, option=value.option)


def is_trainer(name: str) -> bool:
    return name in _TRAINERS or (name.startswith("trl.") and name.endswith("Config"))


_PARSERS = ("HfArgumentParser", "TrlParser")


def typed(script: Script) -> Call | None:
    """The arguments of a Trainer that a script reads from its command line, as the call that would make them."""
    for parser in (call for call in script.calls if call.last in _PARSERS):
        given = parser.argument("dataclass_types", 0)
        listed = [] if given is None else [given, *script.names.feeding(given)]
        parts = [part for one in listed for part in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]
        for name in (script.names.resolved(part) for part in parts if isinstance(part, ast.Name | ast.Attribute)):
            if is_trainer(name) and script.arguments:
                made = ast.Call(ast.Name(name), [], [*_typed(script.arguments)])
                for node in ast.walk(made):
                    ast.copy_location(node, parser.node)
                return Call(made, lambda _, name=name: name)  # type: ignore[misc]
    return None


def _typed(arguments: Sequence[str]) -> Iterator[ast.keyword]:
    waiting = list(arguments)
    while waiting:
        word, equals, value = waiting.pop(0).partition("=")
        if not word.startswith("--"):
            continue
        if not equals:
            value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else "true"
        yield ast.keyword(word[2:].replace("-", "_"), ast.Constant(_value(value)))


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def of_trainer(script: Script, call: Call, *, usual: bool = False) -> Iterator[Number]:
    """What the arguments of a Trainer say; `usual`: the call is that of a Trainer without arguments."""
    last, owner = call.last, "transformers"
    own = usual or call.name in _TRAINERS or last in RATES
    for argument, kind in _OF_TRAINER.items():
        inherited = (own or argument in _KEPT_BY_TRL) and not call.has_spread()
        default = TRAINER_DEFAULTS.get(argument) if inherited else None
        name = f"{last}({argument})"
        if argument == "learning_rate" and last in RATES and inherited:
            given = call.keyword(argument)
            yield from number(script, kind, name, given, RATES[last], call.node, "trl")
            continue
        if argument == "warmup_steps" and call.keyword("warmup_ratio") is not None:
            ratio = call.keyword("warmup_ratio")
            yield from number(script, "warmup_ratio", f"{last}(warmup_ratio)", ratio, None, call.node, "")
            continue
        for found in number(script, kind, name, call.keyword(argument), default, call.node, owner):
            share = kind == "warmup" and isinstance(found.value, float) and 0 < found.value < 1
            yield replace(found, kind="warmup_ratio") if share else found
    yield from _optimizer(script, call, last)
    told = call.keyword("bf16") or call.keyword("fp16")
    if last in RATES and told is None and not call.has_spread():
        yield Number(kind="precision", name=f"{last}(bf16)", node=call.node, value="bf16", left_out="trl")
    for precision in ("bf16", "fp16"):
        value = script.values.of(call.keyword(precision))
        if value and value.value is True:
            yield Number(
                kind="precision", name=f"{last}({precision})", node=value.node, value=precision, option=value.option
            )
    steps = script.values.of(call.keyword("max_steps"))
    if steps and isinstance(steps.value, int) and steps.value > 0:
        yield read("steps", f"{last}(max_steps)", steps)
    elif call.keyword("max_steps") is None or steps:
        default = TRAINER_DEFAULTS["num_train_epochs"] if own and not call.has_spread() else None
        given = call.keyword("num_train_epochs")
        yield from number(script, "epochs", f"{last}(num_train_epochs)", given, default, call.node, owner)


def _optimizer(script: Script, call: Call, last: str) -> Iterator[Number]:
    """The optimizer by its word, and the numbers that a Trainer gives to those that are AdamW."""
    made: ast.AST | None = script.names.function("create_optimizer")
    made = made or next((given for one in script.calls if (given := one.keyword("optimizers")) is not None), None)
    if made is not None:
        yield Number(kind="optimizer", name="Trainer(optimizers)", node=made)
        return
    given = call.keyword("optim")
    word = script.values.of(given)
    kind = "AdamW" if given is None else OPTIMIZERS.get(str(word.value)) if word else None
    if word and given is not None:
        yield Number(kind="optimizer", name=kind or str(word.value), node=word.node, value=kind, option=word.option)
    if kind and kind != "SGD" and not call.has_spread():
        for kind_of, name in (("beta1", "adam_beta1"), ("beta2", "adam_beta2"), ("epsilon", "adam_epsilon")):
            default = TRAINER_DEFAULTS[name]
            yield from number(
                script, kind_of, f"{last}({name})", call.keyword(name), default, call.node, "transformers"
            )
    elif kind == "SGD":
        # Whatever the arguments say, a Trainer gives its SGD no momentum.
        yield Number(kind="beta1", name="SGD(momentum)", node=call.node, value=0.0, left_out="transformers")
