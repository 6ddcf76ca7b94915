"""What a training tool's file says, as answers of a plan."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, get_args

from trainwiz import plan as plans
from trainwiz import vocabulary as words
from trainwiz.adoption import data_sources
from trainwiz.adoption.ledger import Page, leaves
from trainwiz.adoption.optimizer import leave_usual
from trainwiz.adoption.script import OPTIMIZERS
from trainwiz.config import ToolFile
from trainwiz.engines.transformers import OPTIMIZERS as TRAINER_OPTIMIZERS
from trainwiz.errors import PlanError
from trainwiz.message import say

_COUNTS = {
    "per_device_train_batch_size": "batch.per_device_batch_size",
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "length": "batch.sequence_length",
    "logging_steps": "tracking.logging_steps",
    "save_steps": "checkpoint.checkpointing_steps",
    "save_total_limit": "checkpoint.checkpoints_total_limit",
    "max_rows": "data.max_rows",
}
_NUMBERS = {
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "max_grad_norm": "optimizer.gradient_clipping",
    "warmup_ratio": "schedule.warmup_ratio",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.epsilon",
    "neftune_noise_alpha": "model.neftune_alpha",
    "preference_beta": "preference.beta",
}
_OF_LORA = {"lora_rank": "model.lora_rank", "lora_alpha": "model.lora_alpha", "lora_dropout": "model.lora_dropout"}
_LISTED = {
    "special_tokens": "data.special_tokens",
    "added_tokens": "data.added_tokens",
    "modules_to_save": "model.modules_to_save",
}
_TOKENS = (*words.TOKEN_ROLES, words.MORE_SPECIAL_TOKENS)
_TASKS = {
    "pt": "causal_lm",
    "sft": "sft",
    "rm": "reward_model",
    "dpo": "preference",
    "kto": "preference",
    "orpo": "preference",
}
_DATA = ("dataset", "datasets", "pretraining_dataset", "test_datasets", "eval_dataset", "val_dataset", "dataset_name")
_TARGETS = ("lora_target_linear", "lora_target", "lora_target_modules", "target_modules")
_ALL_LAYERS = ("all", "all-linear", True)
"""What those keys say for every linear layer, as a plan has it."""
_KEYS = {
    **_COUNTS,
    **_NUMBERS,
    **_OF_LORA,
    "num_train_epochs": "schedule.n_epochs",
    "warmup_steps": "schedule.n_warmup_steps",
    "lr_scheduler_type": "schedule.lr_scheduler_type",
    "seed": "seed",
    "eval_part": "data.eval",
}
"""The plan's key for each word that a tool may have a default for."""
_ON_DISK = ("offload_disk", "disk")
_OFFLOADED = ("offload", "legacy", "hidden_states", *_ON_DISK)
"""Words for recomputed layers whose inputs are not on the device."""
_PLACEHOLDER = re.compile(r"\$\{\w")
_REFERENCE = re.compile(r"\$[\w{(]|`")
"""Words of a shell that it replaces."""
_REENTRANT = "gradient_checkpointing_kwargs.use_reentrant"
_SAYS_NOTHING: tuple[Any, ...] = (None, False, "", [], {}, "none", "no")


def read(page: Page, tool_file: ToolFile) -> None:
    """Enter what the plan has keys for."""
    tool_file = _without_unset(page, tool_file)
    model = tool_file.value("model")
    if isinstance(model, str) and model:
        page.carry(tool_file.key("model"), "model.name", model)
        page.carry(tool_file.key("model"), "model.from_scratch", False)
    _own_words(page, tool_file)
    _numbers(page, tool_file)
    _length_of_training(page, tool_file)
    _precision(page, tool_file)
    _adapter(page, tool_file)
    data_sources.read(page, tool_file)
    _task(page, tool_file)
    schedule = tool_file.value("lr_scheduler_type")
    if schedule in get_args(words.SchedulerType):
        page.carry(tool_file.key("lr_scheduler_type"), "schedule.lr_scheduler_type", schedule)
    if isinstance(tool_file.value("packing"), bool):
        page.carry(tool_file.key("packing"), "data.packing", tool_file.value("packing"))
    _recomputation(page, tool_file)
    _machines(page, tool_file)
    for word in ("rslora", "dora"):
        if tool_file.on(word) and _adapts(page):
            page.carry(tool_file.key(word), f"model.lora_{word}", True)
    _lists(page, tool_file)
    _optimizer(page, tool_file)
    _evaluation(page, tool_file)
    _trackers(page, tool_file)
    _alike(page, tool_file)
    _defaults(page, tool_file)
    leave_usual(page.ledger)
    if tool_file.deepspeed is not None:
        page.same(tool_file.key("deepspeed"))


def _without_unset(page: Page, tool_file: ToolFile) -> ToolFile:
    """The file without the values that refer to something which it does not have: a variable, or a key."""
    document = tool_file.document
    unset = {
        key: value
        for key, value in document.values.items()
        if isinstance(value, str)
        and key != tool_file.key("output_dir")
        and (_REFERENCE if document.syntax == "shell" else _PLACEHOLDER).search(value)
    }
    for key, value in unset.items():
        page.leave(key, "lost", say("{value} has no value in the file; give it with --set", value=value))
    kept = {key: value for key, value in document.values.items() if key not in unset}
    return replace(tool_file, document=replace(document, values=kept)) if unset else tool_file


def _own_words(page: Page, tool_file: ToolFile) -> None:
    """What the tool says in a way of its own, and what it decides where its file says nothing."""
    for path, key, value in tool_file.tool.of_plan(tool_file.document):
        if tool_file.has(path):
            page.carry(path, key, value)
            continue
        block = path.rpartition(".")[0]
        at = block if block and tool_file.has(block) else next(iter(map(str, tool_file.document.values)))
        why = say("not set; {owner} defaults to {value}", owner=tool_file.tool.name, value=str(value))
        page.carry(at, key, value, why)


def _recomputation(page: Page, tool_file: ToolFile) -> None:
    """Activation checkpointing, and where the checkpoints are kept: on the device, in host memory or on a disk."""
    key, said = tool_file.key("gradient_checkpointing"), tool_file.value("gradient_checkpointing")
    of_offload, place = tool_file.key("activation_offloading"), tool_file.value("activation_offloading")
    if said is False:
        page.carry(key, "model.activation_checkpointing", "none")
    elif said is True or said in _OFFLOADED:
        for name, word in ((key, said), (of_offload, place)):
            if word in _ON_DISK:
                page.leave(name, "lost", say("a plan keeps offloaded activations in host memory, not on disk"))
        away = said in _OFFLOADED or place is True or place in _OFFLOADED
        selective = tool_file.get("selective_checkpointing")
        how = "offload" if away else "selective" if selective else "full"
        page.carry(key, "model.activation_checkpointing", how)
        if place is True or place in _OFFLOADED:
            page.same(of_offload)
        if how == "selective" and selective is True:
            page.leave(
                "selective_checkpointing",
                "inert",
                say("selective in a plan keeps the results of matrix multiplications and attention"),
            )
    if tool_file.get(_REENTRANT) is False:
        page.same(_REENTRANT)
    elif tool_file.get(_REENTRANT) is True:
        page.leave(_REENTRANT, "inert", say("a project recomputes without it; the gradients are the same"))


def _lists(page: Page, tool_file: ToolFile) -> None:
    """Tokens that the tokenizer gets, and the modules that are trained as a whole beside an adapter."""
    for word, key in _LISTED.items():
        name, said = tool_file.key(word), tool_file.value(word)
        if not said or (word == "modules_to_save" and not _adapts(page)):
            continue
        if isinstance(said, dict):
            for role in said:
                if role in _TOKENS:
                    page.same(f"{name}.{role}")
                else:
                    page.leave(f"{name}.{role}", "lost", say("a plan has no such token role"), key=key)
            said = {role: token for role, token in said.items() if role in _TOKENS}
        elif isinstance(said, list) and word == "modules_to_save":
            said = ",".join(map(str, said))
        try:
            page.carry(name, key, plans.parse_values({key: said})[key])
        except PlanError as error:
            page.leave(name, "lost", error.problems[0], key=key)
    if tool_file.on("resized"):
        page.same(tool_file.key("resized"))
    if tool_file.value("chat_template") in get_args(words.ChatTemplate):
        page.carry(tool_file.key("chat_template"), "data.chat_template", tool_file.value("chat_template"))


def _optimizer(page: Page, tool_file: ToolFile) -> None:
    """The optimizer by its word; torch's class and the plan's name for it are different words."""
    key, word = tool_file.key("optim"), tool_file.value("optim")
    if not key or word is None:
        return
    name = OPTIMIZERS.get(TRAINER_OPTIMIZERS.get(str(word), ""))
    if name:
        page.carry(key, "optimizer.name", name)
    else:
        page.leave(
            key,
            "lost",
            say("a plan has no optimizer {word}; choose optimizer.name", word=str(word)),
            key="optimizer.name",
        )


def _evaluation(page: Page, tool_file: ToolFile) -> None:
    """The part of the data that is kept for evaluation: a share, or a number of samples."""
    part = tool_file.number("eval_part")
    if part is not None and 0 < part < 1:
        page.carry(tool_file.key("eval_part"), "data.eval", f"{100 * part:g}%")
    elif part is not None and part >= 1:
        page.carry(tool_file.key("eval_part"), "data.eval", str(int(part)))


def _trackers(page: Page, tool_file: ToolFile) -> None:
    """The service that gets the metrics, and the names of the project and the run there."""
    key, said = tool_file.key("report_to"), tool_file.value("report_to")
    named = [str(one) for one in (said if isinstance(said, list) else [said]) if one not in _SAYS_NOTHING]
    known = [one for one in named if one in get_args(words.Tracker)]
    if others := [one for one in named if one not in known[:1]]:
        page.leave(
            key,
            "lost",
            say("a run reports to one service, if to any; not to {others}", others=", ".join(others)),
            key="tracking.log_with",
        )
    if known:
        page.carry(key, "tracking.log_with", known[0])
    for word, of_plan in (("project", "tracking.project"), ("run_name", "tracking.run_name")):
        name = tool_file.value(word)
        if isinstance(name, str) and name:
            page.carry(tool_file.key(word), of_plan, name)


def _alike(page: Page, tool_file: ToolFile) -> None:
    """What a project does in any case."""
    for key, values in tool_file.tool.alike.items():
        if tool_file.has(key) and (not values or tool_file.get(key) in values):
            page.same(key)
    for key in tool_file.document.values if tool_file.tool.interpolates else ():
        if f"${{{key}}}" in tool_file.document.text and key not in tool_file.tool.words.values():
            page.same(str(key))
    if (out := tool_file.key("output_dir")) and tool_file.has(out):
        page.leave(out, "inert", say("a project writes each run into a folder of its own in runs/"))


# docs/decisions/files.md: An import takes a tool's defaults, not trainwiz's
def _defaults(page: Page, tool_file: ToolFile) -> None:
    """Enter the tool's defaults for what the file leaves out, if a plan decides it differently."""
    given = page.ledger.carried
    warm = any(tool_file.value(word) is not None for word in ("warmup_steps", "warmup_ratio"))
    for word, value in tool_file.tool.defaults.items():
        key = _KEYS.get(word)
        if tool_file.value(word) is not None or key is None or key in given:
            continue
        if (word.startswith("warmup") and warm) or (key == "schedule.n_epochs" and "schedule.n_steps" in given):
            continue
        if word.startswith("lora_") and not _adapts(page):
            continue
        why = say("not set; {owner} defaults to {value}", owner=tool_file.tool.name, value=str(value))
        at = tool_file.key("model")
        if key == "data.eval":
            page.carry(at, key, None, why)
        else:
            page.carry(at, key, value, why)
        if key == "schedule.n_epochs":
            page.carry(at, "schedule.train_strategy", "epochs", why)


def finish(page: Page, tool_file: ToolFile) -> None:
    """Enter everything else in the file."""
    for path, value in leaves(tool_file.document):
        if page.knows(path):
            continue
        block = path.partition(".")[0]
        if value in _SAYS_NOTHING:
            page.same(path)
        elif block != path and tool_file.get(f"{block}.enabled") is False:
            page.leave(path, "inert", say("{block} is off in the file", block=block))
        elif path.partition(".")[0] in _DATA:
            page.leave(path, "lost", say("name the data in data.train and data.eval"), key="data.train")
        else:
            page.leave(path, "lost", say("the generated loop has no equivalent"))


def _numbers(page: Page, tool_file: ToolFile) -> None:
    for word, key in _COUNTS.items():
        if count := tool_file.count(word):
            page.carry(tool_file.key(word), key, count)
    for word, key in _NUMBERS.items():
        number = tool_file.number(word)
        if number is not None and number >= 0:
            page.carry(tool_file.key(word), key, number)
    warmup, seed = tool_file.count("warmup_steps"), tool_file.value("seed")
    if warmup:
        page.carry(tool_file.key("warmup_steps"), "schedule.n_warmup_steps", warmup)
    if type(seed) is int and seed >= 0:
        page.carry(tool_file.key("seed"), "seed", seed)


def _length_of_training(page: Page, tool_file: ToolFile) -> None:
    steps, epochs = tool_file.count("max_steps"), tool_file.count("num_train_epochs")
    if steps:
        page.carry(tool_file.key("max_steps"), "schedule.n_steps", steps)
        page.carry(tool_file.key("max_steps"), "schedule.train_strategy", "steps")
        if tool_file.value("num_train_epochs") is not None:
            page.leave(tool_file.key("num_train_epochs"), "inert", say("the number of updates takes precedence"))
    elif epochs:
        page.carry(tool_file.key("num_train_epochs"), "schedule.n_epochs", epochs)
        page.carry(tool_file.key("num_train_epochs"), "schedule.train_strategy", "epochs")


def _machines(page: Page, tool_file: ToolFile) -> None:
    """What a job asks for; its commands stay where they are."""
    job = tool_file.tool.job(tool_file.document)
    if job and job.machines and job.gpus:
        at = job.at.get("gpu") if tool_file.has(job.at.get("gpu", "")) else job.at.get("text")
        place = at or next(iter(map(str, tool_file.document.values)))
        why = say("{machines} machines with {gpus} GPUs each", machines=job.machines, gpus=job.gpus)
        page.carry(place, "machine.num_machines", job.machines, why)
        page.carry(place, "machine.num_processes", job.machines * job.gpus, why)
        page.carry(place, "machine.device", "cuda", why)


def _precision(page: Page, tool_file: ToolFile) -> None:
    for kind in ("bf16", "fp16"):
        if tool_file.on(kind) or (kind == "bf16" and tool_file.value(kind) == "auto"):
            page.carry(tool_file.key(kind), "precision.mixed_precision", kind)


def _adapter(page: Page, tool_file: ToolFile) -> None:
    tool, document = tool_file.tool, tool_file.document
    quantized, key = tool.quantized(document), tool_file.key("adapter")
    said = tool_file.value("adapter")
    usual = said is None and tool.usual_adapter in tool.adapters
    if key and not usual and said in (*_SAYS_NOTHING, "full"):
        # Else an adapter would be decided where all weights do not fit.
        name = key if tool_file.has(key) else tool_file.key("model")
        page.carry(name, "model.adapter", "none", say("{owner} trains all weights here", owner=tool.name))
    if key and (usual or said in tool.adapters):
        four = bool(quantized) and ("4bit" in str(quantized) or tool_file.get(str(quantized)) == 4)
        if usual:
            why = say("not set; {owner} defaults to {value}", owner=tool.name, value=tool.usual_adapter)
            page.carry(tool_file.key("model"), "model.adapter", "qlora" if four else "lora", why)
        else:
            page.carry(key, "model.adapter", "qlora" if four else "lora")
        if four and quantized:
            page.same(quantized)
        _targets(page, tool_file)
        for word, of_plan in _OF_LORA.items():
            number = tool_file.number(word)
            if number is not None:
                page.carry(tool_file.key(word), of_plan, number if word == "lora_dropout" else int(number))


def _adapts(page: Page) -> bool:
    """Whether the file is known to train an adapter."""
    adapter = page.ledger.carried.get("model.adapter")
    return adapter is not None and adapter.value != "none"


def _targets(page: Page, tool_file: ToolFile) -> None:
    """The layers that get the adapter: every linear one, which includes any others that are named, or some by name."""
    key = "model.lora_targets"
    for target in _TARGETS:
        said = tool_file.get(target)
        if not said:
            continue
        if key in page.ledger.carried and page.ledger.carried[key].value == "all-linear":
            page.leave(target, "inert", say("the adapter is in every linear layer already"), key=key)
            continue
        named = ",".join(map(str, said)) if isinstance(said, list) else str(said).replace(" ", "")
        try:
            wanted = "all-linear" if said in _ALL_LAYERS else plans.parse_values({key: named})[key]
            page.carry(target, key, wanted)
        except PlanError as error:
            page.leave(target, "lost", error.problems[0], key=key)


def _task(page: Page, tool_file: ToolFile) -> None:
    key = tool_file.key("task")
    said = tool_file.value("task")
    task = _TASKS.get(str(said)) if key else None
    if task:
        page.carry(key, "task", task)
    elif tool_file.key("model") and isinstance(tool_file.value("model"), str):
        page.carry(tool_file.key("model"), "task", tool_file.tool.usual_task)
    if said in get_args(words.PreferenceLoss):
        page.carry(key, "preference.loss", said)
