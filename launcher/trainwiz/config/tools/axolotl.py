"""Axolotl's YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainwiz.config.document import Document
from trainwiz.config.tools import data_set
from trainwiz.config.tools.data_set import DataSet, NamedData
from trainwiz.config.tools.tool import Tool, ToolFile, switched_on
from trainwiz.config.tools.trainer import DEFAULTS, WORDS
from trainwiz.engines.axolotl import KEYS, TRIED

_DATA = ("datasets", "pretraining_dataset", "test_datasets")
_DECIDED = ("load_best_model_at_end", "eval_strategy", "save_strategy")
"""Axolotl derives the Trainer's arguments from more keys than these, and drops those that would stop it."""
_OWN = ("micro_batch_size", "sequence_len", "num_epochs", "adapter", "sample_packing", "dataset_prepared_path", "rl")
_OLD_SWITCHES = (
    "flash_attention",
    "flex_attention",
    "xformers_attention",
    "sdp_attention",
    "eager_attention",
    "sage_attention",
)
"""Each stands for one of the implementations below."""
_SEPARATING = ("flash_attention", "flash-attn", "flex_attention", "xformers", "sage", "sdpa", "eager")
"""Parts of the names of implementations that keep samples of a row apart."""


def _recognized(document: Document) -> bool:
    values = document.values
    if not any(key in values for key in (*_DATA, "micro_batch_size")) and isinstance(values.get("dataset"), Mapping):
        return False  # a script's own file, with some of its words
    return "base_model" in values and any(key in values for key in (*_DATA, *_OWN))


def _quantized(document: Document) -> str | None:
    return next((key for key in ("load_in_4bit", "load_in_8bit") if switched_on(document.get(key))), None)


def _packed_together(document: Document) -> str | None:
    named = document.get("attn_implementation")
    apart = isinstance(named, str) and any(part in named for part in _SEPARATING)
    apart = apart or bool(document.get("gemma4_hybrid_attn_impl"))
    apart = apart or any(switched_on(document.get(key)) for key in _OLD_SWITCHES)
    return None if apart or not switched_on(document.get("sample_packing")) else "sample_packing"


_LOADERS = ("json", "csv", "parquet", "text", "arrow")
"""Names that stand for a kind of files: the files themselves are in data_files."""
_OF_FIELDS = {
    "field_messages": "messages",
    "field_system": "system",
    "field_tools": "tools",
    "field_instruction": "prompt",
    "field_input": "input",
    "field_output": "completion",
    "field_chosen": "chosen",
    "field_rejected": "rejected",
    "field": data_set.TEXT,
    "text_column": data_set.TEXT,
}
"""Its keys for columns, of an entry or of a type that a file spells out, by the words of a plan."""
_READ = frozenset({"path", "name", "split", "data_files", "ds_type", *_OF_FIELDS})
"""Keys of an entry that a source or data.columns of a plan has, too."""
_COMPLETION = "completion"
_ROLE_AND_CONTENT = ({"role": "role", "content": "content"}, {"role": "from", "content": "value"})
"""How the fields of a message may be called without being named in a plan."""


def _data(tool_file: ToolFile) -> Iterator[NamedData]:
    for key in _DATA:
        entries = [
            entry if isinstance(entry, Mapping) else {"path": entry} for entry in data_set.listed(tool_file.get(key))
        ]
        documents = key == "pretraining_dataset" or (
            bool(entries) and all(str(entry.get("type", "")).startswith(_COMPLETION) for entry in entries)
        )
        yield NamedData(
            key=key,
            evaluates=key == "test_datasets",
            sets=tuple(_entry(entry, documents=documents) for entry in entries),
            task="causal_lm" if documents else "",
        )


def _entry(entry: Mapping[str, Any], *, documents: bool) -> DataSet:
    how = entry.get("type")
    spelled = how if isinstance(how, Mapping) else {}
    columns = {
        word: str(name)
        for values in (entry, spelled)
        for key, word in _OF_FIELDS.items()
        if (name := values.get(key)) and (word == data_set.TEXT) is documents
    }
    known = {"message_property_mappings"} if entry.get("message_property_mappings") in _ROLE_AND_CONTENT else set()
    if spelled or documents:
        known.add("type")
    beside = (
        *data_set.said(entry, _READ | known),
        *(f"type.{each}" for each in data_set.said(spelled, frozenset(_OF_FIELDS))),
    )
    files, path = data_set.listed(entry.get("data_files")), entry.get("path")
    if path not in _LOADERS:
        # Some files of a dataset of the hub have no name in a plan.
        named = DataSet() if files else data_set.of_hub(path, entry.get("name"), entry.get("split"))
        return replace(named, columns=columns, beside=beside)
    sources = tuple(file for file in files if data_set.is_source(file))
    part = entry.get("split")
    fewer = (f"split: {part}",) if part and not data_set.is_part(part) else ()
    whole = sources if len(sources) == len(files) else ()
    return DataSet(sources=whole, columns=columns, beside=beside, fewer=fewer)


def _of_plan(document: Document) -> Iterator[tuple[str, str, Any]]:
    """Where its metrics go, and whether the model begins with random weights."""
    if document.get("wandb_project") and document.get("wandb_mode") != "disabled":
        yield "wandb_project", "tracking.log_with", "wandb"
    for key, tracker in (("use_tensorboard", "tensorboard"), ("use_mlflow", "mlflow"), ("use_swanlab", "swanlab")):
        if switched_on(document.get(key)):
            yield key, "tracking.log_with", tracker
    if switched_on(document.get("reinit_weights")):
        yield "reinit_weights", "model.from_scratch", True


TOOL = Tool(
    name="Axolotl",
    version=TRIED,
    recognized=_recognized,
    marks="base_model, datasets",
    words={
        **{word: key for word, key in WORDS.items() if key in KEYS and word not in _DECIDED},
        "per_device_train_batch_size": "micro_batch_size",
        "num_train_epochs": "num_epochs",
        "optim": "optimizer",
        "eval_part": "val_set_size",
        "rslora": "peft_use_rslora",
        "dora": "peft_use_dora",
        "activation_offloading": "activation_offloading",
        "adapter": "adapter",
        "task": "rl",
        "lr_scheduler_type": "lr_scheduler",
        "length": "sequence_len",
        "model": "base_model",
        "streaming": "streaming",
        "packing": "sample_packing",
        "lora_rank": "lora_r",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
        "modules_to_save": "lora_modules_to_save",
        "special_tokens": "special_tokens",
        "added_tokens": "tokens",
        "chat_template": "chat_template",
        "project": "wandb_project",
        "run_name": "wandb_name",
    },
    of_plan=_of_plan,
    alike={
        "model_type": ("AutoModelForCausalLM",),
        "tokenizer_type": ("AutoTokenizer",),
        "dataset_prepared_path": (),
        "pad_to_sequence_len": (),
        "save_safetensors": (True,),
        "debug": (),
    },
    defaults={
        **{word: value for word, value in DEFAULTS.items() if word not in ("learning_rate", "warmup_steps")},
        "per_device_train_batch_size": 1,
        "num_train_epochs": 1,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.03,
        "eval_part": 0.0,
    },
    keys=KEYS,
    quantized=_quantized,
    adapted=lambda document: bool(document.get("adapter")),
    separated=_packed_together,
    data=_data,
)
