"""A script for Lightning: its module, where its Trainer is given model and data, and what the Trainer is told."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainwiz.engines.lightning import COUNTERS
from trainwiz.script.arguments import Number, number
from trainwiz.script.tree import Function, constant, dotted

if TYPE_CHECKING:
    from trainwiz.script import Call, Script

PACKAGES = ("lightning", "pytorch_lightning")
_ARGUMENTS = {
    "accumulate_grad_batches": ("accumulation", 1),
    "gradient_clip_val": ("clipping", 0.0),
    "max_epochs": ("epochs", None),
    "max_steps": ("steps", None),
}
"""What a Trainer's arguments are here, and their defaults."""
_PRECISIONS = {"bf16-mixed": "bf16", "16-mixed": "fp16", "bf16": "bf16", "32-true": "no", "32": "no"}
_MANUAL = "manual_backward"
_UPDATES = (
    *(_MANUAL, ".optimizers", ".lr_schedulers", ".step", ".zero_grad", ".clip_gradients"),
    *(".toggle_optimizer", ".untoggle_optimizer", ".toggled_optimizer"),
)
"""What a training_step calls that makes the updates itself."""
_SHOWING = ("print", ".log", ".log_dict", ".info", ".debug", ".warning", ".add_scalar", ".log_metrics", ".log_image")
_CLI = "LightningCLI"


@dataclass(frozen=True, kw_only=True)
class Lightning:
    """What a script trains with Lightning."""

    classes: tuple[ast.ClassDef, ...]
    """The module's class, and those of its bases that are the script's own."""
    step: Function
    """The module's training_step."""
    trainer: Call
    """The call that makes the Trainer, or the LightningCLI that makes all."""
    model: ast.expr | None
    """What `fit` is given to train."""
    loader: ast.expr | None
    """The loader that `fit` is given, as a name or a call."""
    data_module: ast.expr | None
    """The data module that `fit` is given."""
    own_loader: bool
    """Whether the module makes its own loader of training data."""
    configures: bool
    """Whether the module makes its optimizer, without asking its Trainer."""

    @property
    def by_classes(self) -> bool:
        """Whether a LightningCLI makes model and data from their classes, with the defaults of these."""
        return self.trainer.last == _CLI

    def told(self, name: str) -> ast.expr | None:
        """What the Trainer is told."""
        if not self.by_classes:
            return self.trainer.keyword(name)
        defaults = self.trainer.argument("trainer_defaults", 4)
        pairs = zip(defaults.keys, defaults.values, strict=True) if isinstance(defaults, ast.Dict) else ()
        return next((value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name), None)

    @property
    def asks_trainer(self) -> ast.Attribute | None:
        """Where training_step, or a method that it calls, computes with what only Lightning's Trainer knows."""
        return self._asking("training_step")

    @property
    def optimizers_ask(self) -> ast.Attribute | None:
        """The same of configure_optimizers."""
        return self._asking("configure_optimizers")

    def _asking(self, start: str) -> ast.Attribute | None:
        waiting, seen = [start], set[str]()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            for node in _computed(self.method(name)):
                if isinstance(node, ast.Attribute) and dotted(node.value) == "self":
                    if node.attr in COUNTERS:
                        return node
                    waiting += [node.attr] if node.attr not in seen else []
        return None

    def method(self, name: str) -> Function | None:
        """A method of the module."""
        return next((found for one in self.classes if (found := _method(one, name))), None)

    @property
    def takes_index(self) -> bool:
        """Whether training_step is given the number of the batch, too."""
        return len(self.step.args.args) > 2

    @property
    def steps_by_hand(self) -> ast.AST | None:
        """Where training_step makes the updates itself."""
        calls = (node for node in ast.walk(self.step) if isinstance(node, ast.Call))
        return next((call for call in calls if dotted(call.func).endswith((_MANUAL, ".optimizers"))), None)

    @property
    def by_hand(self) -> tuple[ast.stmt, ...]:
        """The statements with which training_step makes the updates itself, and those around them."""
        if self.steps_by_hand is None:
            return ()
        inside = [node for node in ast.walk(self.step) if isinstance(node, ast.stmt) and node is not self.step]
        return tuple(node for node in inside if any(map(_updates, ast.walk(node))))


def _computed(node: ast.AST | None) -> Iterator[ast.AST]:
    """The nodes of a function, those of what it only logs or prints left out."""
    if node is None:
        return
    yield node
    for child in ast.iter_child_nodes(node):
        call = child.value if isinstance(child, ast.Expr) else None
        if not (isinstance(call, ast.Call) and dotted(call.func).endswith(_SHOWING)):
            yield from _computed(child)


def _updates(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).endswith(_UPDATES)


def of(script: Script) -> Lightning | None:
    """What is trained; None for a script without a LightningModule that is fitted."""
    if not script.engines.lightning:
        return None
    trainer = next((call for call in script.calls if call.last == "Trainer" and _from_lightning(call.name)), None)
    fit = next((call for call in script.calls if call.method == "fit"), None)
    module = next((one for one in _classes(script) if _method(one, "training_step")), None)
    if module is None:
        return None
    if trainer is None:
        return _by_classes(script)
    if fit is None:
        return None
    loader = fit.argument("train_dataloaders", 1)
    data = fit.keyword("datamodule")
    if data is None and loader is not None and _is_data_module(script, loader):
        loader, data = None, loader
    model = fit.argument("model", 0)
    return _found(script, module, trainer, model=model, loader=loader, data_module=data)


def _by_classes(script: Script) -> Lightning | None:
    """The classes that a LightningCLI is given."""
    cli = next((call for call in script.calls if call.last == _CLI and _from_lightning(call.name)), None)
    given = cli.argument("model_class", 0) if cli else None
    module = next((one for one in _classes(script) if given is not None and one.name == dotted(given)), None)
    step = _method(module, "training_step") if module else None
    if cli is None or module is None or step is None:
        return None
    return _found(script, module, cli, model=given, loader=None, data_module=cli.argument("datamodule_class", 1))


def _found(
    script: Script,
    module: ast.ClassDef,
    trainer: Call,
    *,
    model: ast.expr | None,
    loader: ast.expr | None,
    data_module: ast.expr | None,
) -> Lightning:
    step = _method(module, "training_step")
    assert step
    classes = tuple(_with_bases(script, module))
    found = Lightning(
        classes=classes,
        step=step,
        trainer=trainer,
        model=model,
        loader=loader,
        data_module=data_module,
        own_loader=any(_method(one, "train_dataloader") is not None for one in classes),
        configures=any(_method(one, "configure_optimizers") is not None for one in classes),
    )
    return replace(found, configures=found.configures and found.optimizers_ask is None)


def _with_bases(script: Script, module: ast.ClassDef) -> Iterator[ast.ClassDef]:
    classes, waiting, seen = {one.name: one for one in _classes(script)}, [module.name], set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in classes and name not in seen:
            seen.add(name)
            yield classes[name]
            waiting += [dotted(base) for base in classes[name].bases]


def numbers(script: Script) -> Iterator[Number]:
    """What its Trainer says."""
    found = of(script)
    if found is None:
        return
    call = found.trainer
    for name, (kind, default) in _ARGUMENTS.items():
        given = found.told(name)
        value = script.values.of(given)
        if kind == "steps" and value and value.value == -1:
            continue  # no limit
        known = None if call.has_spread() else default
        yield from number(script, kind, f"Trainer({name})", given, known, call.node, "lightning")
    precision = script.values.of(found.told("precision"))
    if precision and str(precision.value) in _PRECISIONS:
        ours = _PRECISIONS[str(precision.value)]
        yield Number(kind="precision", name="Trainer(precision)", node=precision.node, value=ours)


def steps_by_update(found: Lightning) -> bool:
    """Whether its schedule takes a step with each update, and not with each epoch, as it does if nothing is said."""
    made = found.method("configure_optimizers")
    dicts = [node for node in ast.walk(made) if isinstance(node, ast.Dict)] if made else []
    pairs = [(constant(k), constant(v)) for node in dicts for k, v in zip(node.keys, node.values, strict=True)]
    return ("interval", "step") in pairs and not any(key == "frequency" and value != 1 for key, value in pairs)


def _from_lightning(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


def _classes(script: Script) -> Iterator[ast.ClassDef]:
    yield from script.tree.of(ast.ClassDef)


def _method(owner: ast.ClassDef, name: str) -> Function | None:
    return next((one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == name), None)


def _is_data_module(script: Script, given: ast.expr) -> bool:
    """Whether the second argument of `fit` is a data module, by the class that makes it."""
    modules = {one.name for one in _classes(script) if any("DataModule" in dotted(base) for base in one.bases)}
    made = (node for node in script.names.feeding(given) if isinstance(node, ast.Call))
    return any(dotted(call.func).rpartition(".")[2] in modules for call in made)
