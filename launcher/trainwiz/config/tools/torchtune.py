"""torchtune's YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainwiz.config.document import Document
from trainwiz.config.tools import data_set
from trainwiz.config.tools.data_set import DataSet, NamedData
from trainwiz.config.tools.tool import Tool, ToolFile


def _recognized(document: Document) -> bool:
    blocks = [block for block in document.values.values() if isinstance(block, Mapping)]
    return any(str(block.get("_component_", "")).startswith("torchtune.") for block in blocks)


_SOURCES = {
    "alpaca_dataset": "tatsu-lab/alpaca",
    "alpaca_cleaned_dataset": "yahma/alpaca-cleaned",
    "slimorca_dataset": "Open-Orca/SlimOrca-Dedup",
}
"""What its builders read if a file names no source."""
_TASKS = {
    "text_completion_dataset": "causal_lm",
    "wikitext_dataset": "causal_lm",
    "cnn_dailymail_articles_dataset": "causal_lm",
    "preference_dataset": "preference",
    "hh_rlhf_helpful_dataset": "preference",
    "stack_exchange_paired_dataset": "preference",
}
"""What its builders are for, where that is not conversations."""
_COLUMNS = {
    "instruction": "prompt",
    "prompt": "prompt",
    "input": "prompt",
    "output": "completion",
    "chosen": "chosen",
    "rejected": "rejected",
}
"""Its words for columns, by those of a plan; `input` is the whole prompt except of Alpaca's."""
_READ = frozenset(
    {"_component_", "source", "name", "split", "data_files", "column_map", "conversation_column", "column"}
    | {f"column_map.{word}" for word in _COLUMNS}
)
_LOADERS = ("json", "csv", "parquet", "text")


def _data(tool_file: ToolFile) -> Iterator[NamedData]:
    for key in ("dataset", "dataset_val"):
        entries = [entry for entry in data_set.listed(tool_file.get(key)) if isinstance(entry, Mapping)]
        tasks = {_TASKS.get(_builder(entry), "sft") for entry in entries}
        task = tasks.pop() if len(tasks) == 1 else ""
        block = entries[0] if entries and isinstance(tool_file.get(key), Mapping) else {}
        yield NamedData(
            key=key,
            evaluates=key == "dataset_val",
            sets=tuple(_entry(entry, documents=task == "causal_lm") for entry in entries),
            task=task,
            with_keys=tuple(f"{key}.{name}" for name in (*block, *_mapped(block)) if name in _READ),
        )


def _builder(entry: Mapping[str, Any]) -> str:
    return str(entry.get("_component_", "")).rpartition(".")[2]


def _mapped(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that an entry names, by their paths in it."""
    mapped = entry.get("column_map")
    return {f"column_map.{word}": name for word, name in mapped.items()} if isinstance(mapped, Mapping) else {}


def _entry(entry: Mapping[str, Any], *, documents: bool) -> DataSet:
    builder = _builder(entry)
    words = {**_COLUMNS, "input": "input"} if builder.startswith("alpaca") else _COLUMNS
    mapped = {path.partition(".")[2]: name for path, name in _mapped(entry).items()}
    columns = {words[word]: str(name) for word, name in mapped.items() if word in words}
    if entry.get("conversation_column"):
        columns["messages"] = str(entry["conversation_column"])
    if documents:
        columns = {data_set.TEXT: str(entry.get("column") or "text")}
    beside = data_set.said(entry, _READ | {"packed"})
    source, part = entry.get("source", _SOURCES.get(builder)), entry.get("split")
    if source not in _LOADERS:
        return replace(data_set.of_hub(source, entry.get("name"), part), columns=columns, beside=beside)
    files = data_set.listed(entry.get("data_files"))
    sources = tuple(file for file in files if data_set.is_source(file))
    fewer = (f"split: {part}",) if part and not data_set.is_part(part) else ()
    whole = sources if len(sources) == len(files) else ()
    return DataSet(sources=whole, columns=columns, beside=beside, fewer=fewer)


TOOL = Tool(
    name="torchtune",
    version="0.7.0",
    recognized=_recognized,
    marks="_component_: torchtune.…",
    words={
        "per_device_train_batch_size": "batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "learning_rate": "optimizer.lr",
        "weight_decay": "optimizer.weight_decay",
        "max_grad_norm": "clip_grad_norm",
        "num_train_epochs": "epochs",
        "length": "tokenizer.max_seq_len",
        "lora_rank": "model.lora_rank",
        "lora_alpha": "model.lora_alpha",
        "lora_dropout": "model.lora_dropout",
        "gradient_checkpointing": "enable_activation_checkpointing",
        "activation_offloading": "enable_activation_offloading",
        "packing": "dataset.packed",
        "output_dir": "output_dir",
        "seed": "seed",
    },
    stops_at_duplicates=True,
    data=_data,
)
