"""transformers' Trainer in a script, or a class made from it: what it is given to train, and its own loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainwiz.engines.trl import WRITES_ANSWERS
from trainwiz.message import Message, say
from trainwiz.script.arguments import is_trainer, keyword, typed
from trainwiz.script.slices import DEVICE, OWN, Gap, Slice, Slicer
from trainwiz.script.tree import Function, constant, dotted

if TYPE_CHECKING:
    from trainwiz.script import Call, Script

_USUAL = ("Trainer", "Seq2SeqTrainer")
_PACKAGE = "transformers"
_OTHERS = "trl"
_FINE_TUNING = "SFTTrainer"
_MADE_APART = (_FINE_TUNING, "DPOTrainer", "RewardTrainer")
"""Those of TRL whose losses are a function of the model and a batch, so that they can be made without training."""
_OF_ALL_SAMPLES: dict[str, Message] = {
    "KTOTrainer": say(
        "its loss compares each answer with the mean over a micro-batch; the task preference takes the mean over all "
        "samples of an update: add --set task=preference --set preference.loss=kto"
    ),
    "ORPOTrainer": say(
        "its loss adds a mean over tokens and one over pairs, which no split of a batch keeps; the task preference "
        "counts both over all samples of an update: add --set task=preference --set preference.loss=orpo"
    ),
    "CPOTrainer": say(
        "its loss adds a mean over pairs and one over tokens, which no split of a batch keeps; without the latter it "
        "is SimPO: add --set task=preference --set preference.loss=simpo"
    ),
}
"""Those whose losses are no function of a micro-batch alone, with what a project has instead."""
_OF_UPDATES = (
    *("callbacks", "compute_metrics", "eval_dataset", "optimizers", "optimizer_cls_and_kwargs"),
    "preprocess_logits_for_metrics",
)
"""What a trainer is given for updates and evaluation."""
_COUNTS = "num_items_in_batch"
_SELF = "a_trainer"


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A Trainer that a script makes."""

    call: Call
    """The call that makes it."""
    classes: tuple[ast.ClassDef, ...]
    """Its class and those of its bases that are the script's own."""
    base: str
    """The full name of what they derive from."""

    @property
    def is_usual(self) -> bool:
        """Whether it is transformers' own, which takes data and loss as they are."""
        package, _, last = self.base.rpartition(".")
        return last in _USUAL and package.partition(".")[0] in ("", _PACKAGE)

    @property
    def of_trl(self) -> bool:
        """Whether it is one of TRL's, which make their samples and losses themselves."""
        return self.base.partition(".")[0] == _OTHERS

    @property
    def fine_tunes(self) -> bool:
        """Whether it is TRL's for fine-tuning, whose loss is that of the model on the samples that it makes."""
        return self.base.endswith(f".{_FINE_TUNING}")

    @property
    def is_made_apart(self) -> bool:
        """Whether a project makes it, for its samples and losses, and trains by itself."""
        package, _, last = self.base.rpartition(".")
        return package.partition(".")[0] == _OTHERS and last in _MADE_APART

    @property
    def writes_answers(self) -> bool:
        """Whether the model writes the samples as it trains."""
        package, _, last = self.base.rpartition(".")
        return package.partition(".")[0] == _OTHERS and last in WRITES_ANSWERS

    @property
    def of_all_samples(self) -> Message | None:
        """Why its loss cannot be that of several micro-batches, and what can."""
        return _OF_ALL_SAMPLES.get(self.base.rpartition(".")[2]) if self.of_trl else None

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.call.last

    def method(self, name: str) -> tuple[ast.ClassDef, ast.FunctionDef] | None:
        """A method that the script's own classes give it, with its class."""
        for owner in self.classes:
            for one in owner.body:
                if isinstance(one, ast.FunctionDef) and one.name == name:
                    return owner, one
        return None

    def arguments(self, script: Script) -> Call | None:
        """The call that makes its arguments."""
        return next((call for call in script.calls if is_trainer(call.name)), None) or typed(script)

    def keeps_columns(self, script: Script) -> bool:
        """Whether it keeps columns that the model's forward does not take."""
        made = self.arguments(script)
        said = script.values.of(made.keyword("remove_unused_columns")) if made else None
        return said is not None and said.value is False


def of(script: Script) -> Trainer | None:
    """The first Trainer that a script makes, unless it trains in a loop of its own."""
    classes = {one.name: one for one in script.tree.of(ast.ClassDef)}
    for call in script.calls:
        if not call.last.endswith("Trainer") and call.last not in classes:
            continue
        chain = list(_chain(classes, call.last))
        bases = [script.names.resolved(base) for one in chain for base in one.bases if dotted(base) not in classes]
        base = next((one for one in bases if one.endswith("Trainer")), "") if chain else call.name
        found = Trainer(call=call, classes=tuple(chain), base=base)
        if base and (found.is_usual or not script.training.backwards):
            return found
    return None


def _chain(classes: dict[str, ast.ClassDef], name: str) -> Iterator[ast.ClassDef]:
    waiting, seen = [name], set[str]()
    while waiting:
        one = waiting.pop(0)
        if one in classes and one not in seen:
            seen.add(one)
            yield classes[one]
            waiting += [dotted(base) for base in classes[one].bases]


def model_of(trainer: Trainer) -> dict[str, ast.expr]:
    """What it is given to train, by name."""
    given = trainer.call.argument("model", 0) or trainer.call.keyword("model_init")
    return {dotted(given) or "model": given} if given is not None else {}


def model(script: Script, trainer: Trainer, given: ast.expr) -> Slice:
    """The model: what it is given, made by a function, loaded by its name, or within an adapter. Raises `Gap`."""
    taken = Slicer(script).of(given)
    imports, expression, outer = taken.imports, taken.expression, taken.outer
    if given is trainer.call.keyword("model_init"):
        expression = f"{expression}()"
    if trainer.of_trl and isinstance(constant(given), str):
        if not trainer.fine_tunes:
            raise Gap(given, say("{name} loads the model by its name", name=trainer.name))
        expression = f"AutoModelForCausalLM.from_pretrained({expression})"
        imports = (*imports, "from transformers import AutoModelForCausalLM")
    adapter = trainer.call.keyword("peft_config") if trainer.of_trl else None
    if adapter is not None and not _is_none(adapter):
        around = Slicer(script).of(adapter)
        expression = f"get_peft_model({expression}, {around.expression})"
        outer = tuple(dict.fromkeys((*outer, *around.outer)))
        imports = (*imports, *around.imports, "from peft import get_peft_model")
    return Slice(expression=expression, outer=outer, inner=taken.inner, imports=imports, options=taken.options)


def whole(script: Script, trainer: Trainer) -> Slice:
    """The call that makes it, without what is for updates and evaluation. Raises `Gap`."""
    call = trainer.call
    if own_step := trainer.method("training_step"):
        raise Gap(own_step[1], say("{name} has its own training_step", name=trainer.name))
    left_out = {id(one.value): "None" for one in call.node.keywords if one.arg in _OF_UPDATES}
    left_out |= {id(one.value): "(None, None)" for one in call.node.keywords if one.arg == "optimizers"}
    return Slicer(script, replaced=left_out).of(call.node)


def collate(script: Script, trainer: Trainer) -> tuple[ast.AST, Slice]:
    """What makes a batch of samples, and where the script says so. Raises `Gap`."""
    given = keyword(script, trainer.call, "data_collator")
    if given is not None and not _is_none(given):
        return given, Slicer(script).of(given)
    words = trainer.call.keyword("processing_class") or trainer.call.keyword("tokenizer")
    usual = "default_data_collator"
    if words is None or _is_none(words):
        return script.tree.module, Slice(expression=usual, imports=(f"from transformers import {usual}",))
    taken = Slicer(script).of(words)
    padded = "PreTrainedTokenizerBase | SequenceFeatureExtractor"
    names = f"DataCollatorWithPadding, PreTrainedTokenizerBase, SequenceFeatureExtractor, {usual}"
    return words, Slice(
        expression=f"DataCollatorWithPadding(words) if isinstance(words, {padded}) else {usual}",
        outer=(*taken.outer, *taken.inner, f"words = {taken.expression}"),
        imports=(*taken.imports, f"from transformers import {names}"),
        options=taken.options,
    )


def loss(script: Script, trainer: Trainer) -> tuple[ast.AST, Slice]:
    """The loss of a batch, and where the script says so. Raises `Gap`."""
    own, given = trainer.method("compute_loss"), keyword(script, trainer.call, "compute_loss_func")
    if own is not None:
        return own[1], _own_loss(script, trainer, own[1])
    node = trainer.call.node
    if given is not None:
        raise Gap(given, say("the Trainer has its own loss"))
    if not trainer.is_usual and not trainer.fine_tunes:
        raise Gap(node, trainer.of_all_samples or say("{name} has its own loss", name=trainer.name))
    if own_step := trainer.method("training_step"):
        raise Gap(own_step[1], say("{name} has its own training_step", name=trainer.name))
    made = trainer.arguments(script)
    for name in ("label_smoothing_factor", "loss_type"):
        said = made.keyword(name) if made else None
        if said is not None and constant(said) not in (0, "nll", "chunked_nll"):
            raise Gap(said, say("{name} changes the loss of the model", name=name))
    return node, Slice(expression="model(**batch).loss")


def _own_loss(script: Script, trainer: Trainer, function: ast.FunctionDef) -> Slice:
    """Its compute_loss, called without a Trainer; what it takes from itself is what its `__init__` was given."""
    made = trainer.classes[0]
    if made not in script.tree.module.body or not function.args.args:
        raise Gap(function, say("{name} is not defined at the top of a module", name=made.name))
    if script.runs_when_imported and made.name not in script.definitions.own:
        line = script.runs_when_imported.lineno
        raise Gap(
            function,
            say("{name} cannot be imported: the script trains on import (line {line})", name=made.name, line=line),
        )
    own = function.args.args[0].arg
    counted = next((n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == _COUNTS), None)
    if counted is not None:
        raise Gap(counted, say("compute_loss divides by num_items_in_batch"))
    attributes: dict[str, ast.Attribute] = {}
    inside = {id(n.value): n for n in ast.walk(function) if isinstance(n, ast.Attribute)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in (own, "super"):
            taken = inside.get(id(node))
            if node.id == "super" or taken is None or not isinstance(taken.ctx, ast.Load):
                raise Gap(node, say("compute_loss uses the Trainer itself"))
            attributes.setdefault(taken.attr, taken)
    call = f"{OWN}.{made.name}.compute_loss"
    if not attributes:
        return Slice(expression=f"{call}(None, model, dict(batch))", imports=(f"import {OWN}",))
    return _with_attributes(script, trainer, function, attributes, call)


def taken_attributes(function: ast.FunctionDef, loss: Slice) -> dict[int, str]:
    """How a count takes what compute_loss takes from its Trainer, by the identity of its nodes."""
    own = function.args.args[0].arg if function.args.args else ""
    names = {name.removeprefix(f"{_SELF}_"): name for name in loss.from_outside}
    return {
        id(node): f'outside(torch.device("cpu")).{names[node.attr]}'
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and dotted(node.value) == own and node.attr in names
    }


def _with_attributes(
    script: Script, trainer: Trainer, function: ast.FunctionDef, attributes: dict[str, ast.Attribute], call: str
) -> Slice:
    slices: list[Slice] = []
    values: dict[str, str] = {"model": "bare(model)"} if "model" in attributes else {}
    for name, node in attributes.items():
        if name != "model":
            slices.append(_attribute(script, trainer, function, name, node))
            values[name] = f"{_SELF}_{name}"
    lines = [
        line
        for name, taken in zip((n for n in attributes if n != "model"), slices, strict=True)
        for line in (*taken.outer, *taken.inner, f"{_SELF}_{name} = {taken.expression}")
    ]
    held = ", ".join(f"{name}={value}" for name, value in values.items())
    return Slice(
        expression=f"{call}(SimpleNamespace({held}), model, dict(batch))",
        outer=tuple(dict.fromkeys(lines)),
        from_outside=tuple(value for name, value in values.items() if name != "model"),
        imports=(
            f"import {OWN}",
            "from types import SimpleNamespace",
            *(line for taken in slices for line in taken.imports),
        ),
        options=tuple(node for taken in slices for node in taken.options),
    )


def _attribute(script: Script, trainer: Trainer, function: ast.FunctionDef, name: str, at: ast.AST) -> Slice:
    """What its `__init__` sets from an argument of the call that makes it. Raises `Gap`."""
    unknown = Gap(at, say("compute_loss uses the Trainer itself"))
    start = trainer.method("__init__")
    methods = [one for owner in trainer.classes for one in owner.body if isinstance(one, Function)]
    given = [
        statement
        for one in methods
        for statement in ast.walk(one)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and _gives(statement, one, name)
    ]
    if start is None or len(given) != 1 or given[0] not in start[1].body or not isinstance(given[0], ast.Assign):
        raise unknown
    value = _unplaced(given[0].value)
    node = _argument(script, trainer, start[1], value)
    if node is None:
        raise unknown
    taken = Slicer(script, block=function.body).of(node)
    if value is given[0].value:
        return taken
    return replace(taken, expression=f"{taken.expression}.to({DEVICE})")


def _unplaced(value: ast.expr) -> ast.expr:
    """A value without what moves it to a device."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda"):
        value = value.func.value
    return value


def _gives(statement: ast.Assign | ast.AugAssign | ast.AnnAssign, method: Function, name: str) -> bool:
    own = method.args.args[0].arg if method.args.args else ""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(dotted(node) == f"{own}.{name}" for target in targets for node in ast.walk(target))


def _argument(script: Script, trainer: Trainer, start: ast.FunctionDef, value: ast.expr) -> ast.expr | None:
    """What the call gives for a value of `__init__`: a parameter, or `kwargs.pop("name")`."""
    rest, default = start.args.kwarg, None
    if isinstance(value, ast.Name):
        name = value.id
        default = _defaults(start).get(name)
        places = [one.arg for one in start.args.args[1:]]
        if name not in places + [one.arg for one in start.args.kwonlyargs]:
            return None
        given = trainer.call.argument(name, places.index(name) if name in places else 1 << 10)
    elif (
        rest is not None
        and isinstance(value, ast.Call)
        and dotted(value.func) in (f"{rest.arg}.pop", f"{rest.arg}.get")
        and value.args
        and isinstance(constant(value.args[0]), str)
    ):
        name = str(constant(value.args[0]))
        default = next(iter(value.args[1:2]), None)
        given = trainer.call.keyword(name)
    else:
        return None
    given = given or keyword(script, trainer.call, name)
    return given if given is not None or trainer.call.has_spread() else default


def _defaults(start: ast.FunctionDef) -> dict[str, ast.expr]:
    last = start.args.args[len(start.args.args) - len(start.args.defaults) :]
    found = {one.arg: value for one, value in zip(last, start.args.defaults, strict=True)}
    pairs = zip(start.args.kwonlyargs, start.args.kw_defaults, strict=True)
    return found | {one.arg: value for one, value in pairs if value is not None}


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
