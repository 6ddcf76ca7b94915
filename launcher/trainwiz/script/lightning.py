"""A script for Lightning: its module, where its Trainer is given model and data, and what the Trainer is told."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwiz.script.arguments import Number, number
from trainwiz.script.tree import Function, dotted

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


@dataclass(frozen=True, kw_only=True)
class Lightning:
    """What a script trains with Lightning."""

    step: Function
    """The module's training_step."""
    trainer: Call
    """The call that makes the Trainer."""
    model: ast.expr | None
    """What `fit` is given to train."""
    loader: ast.expr | None
    """The loader that `fit` is given, as a name or a call."""
    data_module: ast.expr | None
    """The data module that `fit` is given."""
    own_loader: bool
    """Whether the module makes its own loader of training data."""
    configures: bool
    """Whether the module makes its optimizer."""

    @property
    def takes_index(self) -> bool:
        """Whether training_step is given the number of the batch, too."""
        return len(self.step.args.args) > 2

    @property
    def steps_by_hand(self) -> ast.AST | None:
        """Where training_step makes the updates itself."""
        calls = (node for node in ast.walk(self.step) if isinstance(node, ast.Call))
        return next((call for call in calls if dotted(call.func).endswith((_MANUAL, ".optimizers"))), None)


def of(script: Script) -> Lightning | None:
    """What is trained; None for a script without a LightningModule that is fitted."""
    if not script.engines.lightning:
        return None
    trainer = next((call for call in script.calls if call.last == "Trainer" and _from_lightning(call.name)), None)
    fit = next((call for call in script.calls if call.method == "fit"), None)
    module = next((one for one in _classes(script) if _method(one, "training_step")), None)
    if trainer is None or fit is None or module is None:
        return None
    loader = fit.argument("train_dataloaders", 1)
    data = fit.keyword("datamodule")
    if data is None and loader is not None and _is_data_module(script, loader):
        loader, data = None, loader
    step = _method(module, "training_step")
    assert step
    return Lightning(
        step=step,
        trainer=trainer,
        model=fit.argument("model", 0),
        loader=loader,
        data_module=data,
        own_loader=_method(module, "train_dataloader") is not None,
        configures=_method(module, "configure_optimizers") is not None,
    )


def numbers(script: Script) -> Iterator[Number]:
    """What its Trainer says."""
    found = of(script)
    if found is None:
        return
    call = found.trainer
    for name, (kind, default) in _ARGUMENTS.items():
        given = call.keyword(name)
        value = script.values.of(given)
        if kind == "steps" and value and value.value == -1:
            continue  # no limit
        known = None if call.has_spread() else default
        yield from number(script, kind, f"Trainer({name})", given, known, call.node, "lightning")
    precision = script.values.of(call.keyword("precision"))
    if precision and str(precision.value) in _PRECISIONS:
        ours = _PRECISIONS[str(precision.value)]
        yield Number(kind="precision", name="Trainer(precision)", node=precision.node, value=ours)


def _from_lightning(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


def _classes(script: Script) -> Iterator[ast.ClassDef]:
    for node in script.tree.nodes:
        if isinstance(node, ast.ClassDef):
            yield node


def _method(owner: ast.ClassDef, name: str) -> Function | None:
    return next((one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == name), None)


def _is_data_module(script: Script, given: ast.expr) -> bool:
    """Whether the second argument of `fit` is a data module, by the class that makes it."""
    modules = {one.name for one in _classes(script) if any("DataModule" in dotted(base) for base in one.bases)}
    made = (node for node in script.names.feeding(given) if isinstance(node, ast.Call))
    return any(dotted(call.func).rpartition(".")[2] in modules for call in made)
