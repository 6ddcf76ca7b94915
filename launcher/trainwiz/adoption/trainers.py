"""What transformers' Trainer is told in a script and a project does not do: by subtraction from all that it is told."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from trainwiz.adoption.ledger import EVALUATION, Kind
from trainwiz.engines.trainer import LEARNS_THE_SAME, METHODS, OF_EVALUATION, ORDERS_SAMPLES
from trainwiz.engines.trl import OF_ALL_SAMPLES, OF_TOKENS, OWN_ARGUMENTS
from trainwiz.message import Message, say
from trainwiz.script import Script
from trainwiz.script.arguments import READ_OF_TRAINER
from trainwiz.script.trainers import Trainer
from trainwiz.script.tree import constant

_TAKEN = """
args callbacks compute_loss_func compute_metrics data_collator eval_dataset model model_init optimizers peft_config
preprocess_logits_for_metrics processing_class tokenizer train_dataset
""".split()  # noqa: SIM905
"""Arguments of the Trainer itself that are taken over, or named on their own."""
_KNOWN = {*READ_OF_TRAINER, *LEARNS_THE_SAME, *OF_EVALUATION, "label_smoothing_factor", "loss_type"}
"""Its arguments that change nothing, or that are looked at where the loss is."""
_SAYS_NOTHING = (None, False, "", 0, "no", "none")
_OWN_WHYS = {
    "dataloader_drop_last": say("the project also trains on the last samples of an epoch, which do not fill a batch"),
    "load_best_model_at_end": say("the project saves the last model; evaluation.best_metric keeps the best one"),
    "sync_ref_model": say("the reference stays the model before the training: the project calls no callbacks"),
    "neftune_noise_alpha": say("it adds noise to the embeddings; write build_model in task.py"),
}
_Entry = tuple[Kind, str, ast.AST, Message]
"""The kind of an entry, its name, where it is, and why."""


def entries(script: Script, trainer: Trainer, *, is_whole: bool) -> Iterator[_Entry]:
    """What becomes of everything that changes the training and was not taken over.

    `is_whole`: the project makes the trainer itself, with all that it is given for samples and losses.
    """
    yield from _arguments(script, trainer, OWN_ARGUMENTS - {"sync_ref_model"} if is_whole else ())
    if is_whole:
        yield from _losses(script, trainer)
    yield from _given(trainer, is_whole=is_whole)
    yield from _methods(trainer)
    for call in script.methods("add_callback"):
        yield "lost", "add_callback", call.node, say("the project calls no callbacks")


def _arguments(script: Script, trainer: Trainer, taken: Collection[str]) -> Iterator[_Entry]:
    made, given = trainer.arguments(script), trainer.call.argument("args", 1)
    if made is None and given is not None:
        why = say("its values are not written in the script; those that change the training are not known")
        yield "lost", f"{trainer.name}(args)", given, why
    if made is None:
        return
    for one in made.node.keywords:
        if one.arg is None:
            why = say("its values are not written at the call; those that change the training are not known")
            yield "lost", f"{made.last}(**)", one.value, why
        elif one.arg not in {*_KNOWN, *taken} and not _says_nothing(script, one.value):
            usual = say("the generated loop has no equivalent")
            order = say("the project shuffles the samples anew in each epoch")
            why = order if one.arg in ORDERS_SAMPLES else _OWN_WHYS.get(one.arg, usual)
            yield "lost", f"{made.last}({one.arg})", one.value, why


def _losses(script: Script, trainer: Trainer) -> Iterator[_Entry]:
    """Losses of pairs that several micro-batches do not add up to."""
    made = trainer.arguments(script)
    said = made.keyword("loss_type") if made else None
    if said is None:
        return
    found = {constant(node) for node in script.names.feeding(said)}
    if OF_ALL_SAMPLES.intersection(found):
        why = say("it compares the pairs of a micro-batch with each other; the project has those of this split")
        yield "lost", f"{trainer.name}(loss_type)", said, why
    elif OF_TOKENS in found:
        why = say(
            "{kind} is a mean over tokens, the others over pairs; the project averages each micro-batch, and then "
            "these: give one rank a micro-batch of the real batch",
            kind=OF_TOKENS,
        )
        yield "lost", f"{trainer.name}(loss_type)", said, why


def _says_nothing(script: Script, node: ast.expr) -> bool:
    value = script.values.of(node)
    return value is not None and not isinstance(value.value, tuple) and value.value in _SAYS_NOTHING


def _given(trainer: Trainer, *, is_whole: bool) -> Iterator[_Entry]:
    call = trainer.call
    for one in call.node.keywords:
        empty = isinstance(one.value, ast.Constant) and one.value.value in (None, False)
        if one.arg == "callbacks" and not empty and not _only_stops(one.value):
            yield "lost", f"{trainer.name}(callbacks)", one.value, say("the project calls no callbacks")
        elif one.arg == "callbacks" and not empty:
            why = say("evaluation.patience ends the training where evaluation.best_metric no longer gets better")
            yield "lost", f"{trainer.name}(callbacks)", one.value, why
        elif one.arg == "eval_dataset" and not empty:
            yield "code", "evaluation", one.value, EVALUATION
        elif one.arg is not None and one.arg not in _TAKEN and not (trainer.is_usual or is_whole or empty):
            yield "lost", f"{trainer.name}({one.arg})", one.value, say("the generated loop has no equivalent")


def _only_stops(node: ast.expr) -> bool:
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return bool(calls) and all(ast.unparse(one.func).endswith("EarlyStoppingCallback") for one in calls)


def _methods(trainer: Trainer) -> Iterator[_Entry]:
    seen = set[str]()
    for owner in trainer.classes:
        for one in owner.body:
            if not isinstance(one, ast.FunctionDef) or one.name in {*METHODS, *seen}:
                continue
            seen.add(one.name)
            if one.name in _HOOKS or not one.name.startswith("__"):
                why = _HOOKS.get(one.name, say("the project's loop does not call it"))
                yield "code", f"{owner.name}.{one.name}", one, why


_HOOKS = {
    "create_optimizer": say("write build_optimizers in task.py"),
    "create_optimizer_and_scheduler": say("write build_optimizers and schedule in task.py"),
    "create_scheduler": say("write schedule in task.py"),
    "get_train_dataloader": say("write load_train_data and collator in task.py"),
    "training_step": say("write loss_sum in task.py"),
}
