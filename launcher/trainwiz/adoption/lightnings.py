"""What Lightning is told in a script and a project does not do: by subtraction from all that it is told."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.adoption.ledger import EVALUATION, Kind
from trainwiz.engines.lightning import CALLBACKS, HOOKS, LEARNS_THE_SAME, READ
from trainwiz.message import Message, say
from trainwiz.script import Script
from trainwiz.script.lightning import Lightning
from trainwiz.script.tree import constant, dotted

_USUAL = {
    "callbacks": (None,),
    "fast_dev_run": (False, None),
    "gradient_clip_algorithm": (None, "norm"),
    "limit_train_batches": (None,),
    "overfit_batches": (0.0, 0, None),
    "plugins": (None,),
    "reload_dataloaders_every_n_epochs": (0, None),
    "sync_batchnorm": (False, None),
}
"""Values with which an argument of its Trainer changes nothing."""
_Entry = tuple[Kind, str, ast.AST, Message]


def entries(script: Script, found: Lightning) -> Iterator[_Entry]:
    """What becomes of everything that changes the training and was not taken over."""
    yield from _arguments(script, found)
    for owner in found.classes:
        for one in owner.body:
            if isinstance(one, ast.FunctionDef) and one.name in HOOKS and not _is_empty(one):
                why = say("Lightning calls it as it trains, and the project does not; after_update may do the same")
                yield "code", f"{owner.name}.{one.name}", one, why
    asked = found.optimizers_ask
    if asked is not None:
        why = say(
            "it asks Lightning's Trainer for {name}; write build_optimizers and schedule in task.py", name=asked.attr
        )
        yield "code", "configure_optimizers", asked, why
    if (node := found.method("validation_step")) is not None:
        yield "code", "evaluation", node, EVALUATION


def _arguments(script: Script, found: Lightning) -> Iterator[_Entry]:
    call = found.trainer
    for one in _told(found):
        value = script.values.of(one.value)
        if one.arg is None:
            why = say("its values are not written at the call; those that change the training are not known")
            yield "lost", f"{call.last}(**)", one.value, why
        elif not (
            one.arg in {*READ, *LEARNS_THE_SAME}
            or (value and _is_usual(one.arg, value.value))
            or (one.arg == "callbacks" and _change_nothing(script, one.value))
        ):
            why = say("the generated loop has no equivalent")
            why = say("the project calls no callbacks") if one.arg == "callbacks" else why
            yield "lost", f"{call.last}({one.arg})", one.value, why


def _told(found: Lightning) -> Iterator[ast.keyword]:
    """The arguments of its Trainer, also of the one that a LightningCLI makes."""
    if not found.by_classes:
        yield from found.trainer.node.keywords
        return
    defaults = found.trainer.argument("trainer_defaults", 4)
    for key, value in zip(defaults.keys, defaults.values, strict=True) if isinstance(defaults, ast.Dict) else ():
        yield ast.keyword(str(constant(key)) if key is not None else None, value)


def _is_usual(name: str, value: object) -> bool:
    if name == "limit_train_batches" and isinstance(value, float):
        return value == 1.0  # 1 is one batch
    return value in _USUAL.get(name, ())


def _change_nothing(script: Script, node: ast.expr) -> bool:
    """Whether all callbacks are of Lightning's own kinds that change no update."""
    listed = [one for one in script.names.feeding(node) if isinstance(one, ast.List | ast.Tuple)]
    every = [part for one in listed for part in one.elts]
    made = [call for part in every for call in script.names.feeding(part) if isinstance(call, ast.Call)]
    kinds = [dotted(call.func).rpartition(".")[2] for call in made if not isinstance(call.func, ast.Subscript)]
    return bool(every) and len(made) >= len(every) and all(kind in CALLBACKS for kind in kinds)


def _is_empty(method: ast.FunctionDef) -> bool:
    rest = [one for one in method.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return all(isinstance(one, ast.Pass) for one in rest)
