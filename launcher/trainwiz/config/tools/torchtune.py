"""torchtune's YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainwiz.config.document import Document
from trainwiz.config.tools import data_set
from trainwiz.config.tools.data_set import DataSet, NamedData
from trainwiz.config.tools.tool import Tool, ToolFile, as_number


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


def _builder(entry: object) -> str:
    """The last name of what an entry builds; empty for what is no entry."""
    return str(entry.get("_component_", "")).rpartition(".")[2] if isinstance(entry, Mapping) else ""


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


_LORA = re.compile(r"(?P<four>q?)(?P<kind>lora|dora)_")
_ATTENTION = {"output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj"} | {
    "up_proj": "gate_up_proj"
}
"""Layers of Phi-3, which transformers has in one piece."""
_ALL = {"q_proj", "k_proj", "v_proj", "o_proj", *_MLP}
_FULL = "FullModelHFCheckpointer"
_BETAS = ("beta1", "beta2")
_SCHEDULES = {"get_cosine_schedule_with_warmup": "cosine"}
_OPTIMIZERS = {
    "AdamW": "adamw",
    "SGD": "sgd",
    "AdamW8bit": "adamw_8bit",
    "PagedAdamW": "adamw",
    "PagedAdamW8bit": "paged_adamw_8bit",
}


_TRACKERS = {
    "WandBLogger": "wandb",
    "TensorBoardLogger": "tensorboard",
    "MLFlowLogger": "mlflow",
    "DiskLogger": "none",
    "StdoutLogger": "none",
}
"""Its loggers; every run writes its metrics to a file and to the terminal."""
_LOSSES = tuple(
    f"torchtune.modules.loss.{name}"
    for name in ("CEWithChunkedOutputLoss", "LinearCrossEntropyLoss", "ChunkedCrossEntropyLoss")
)
"""The cross-entropy under its names, computed in parts."""


def _of_plan(document: Document) -> Iterator[tuple[str, str, Any]]:
    """The model, its adapter, and what the names of its components stand for."""
    built = _builder(document.values.get("model"))
    found = _LORA.match(built)
    if _builder(document.values.get("checkpointer")) == _FULL and document.get("checkpointer.checkpoint_dir"):
        yield "checkpointer.checkpoint_dir", "model.name", str(document.get("checkpointer.checkpoint_dir")).rstrip("/")
        yield from _of_folder(document)
    if found:
        four = bool(found["four"]) or document.get("model.quantize_base") is True
        yield "model._component_", "model.adapter", "qlora" if four else "lora"
        if found["kind"] == "dora" or document.get("model.use_dora") is True:
            yield "model._component_", "model.lora_dora", True
        for key in ("lora_rank", "lora_alpha", "lora_dropout"):
            number = as_number(document.get(f"model.{key}"))
            if number is not None:
                yield f"model.{key}", f"model.{key}", number if key == "lora_dropout" else int(number)
        yield from _targets(document, built)
    elif built:
        yield "model._component_", "model.adapter", "none"
    if document.get("dtype") in ("bf16", "bfloat16"):
        yield "dtype", "precision.mixed_precision", "bf16"
        if not found:
            yield "dtype", "precision.weights", "bfloat16"
    elif document.get("dtype") in ("fp32", "float32"):
        yield "dtype", "precision.mixed_precision", "no"
    if schedule := _SCHEDULES.get(_builder(document.values.get("lr_scheduler") or {})):
        yield "lr_scheduler._component_", "schedule.lr_scheduler_type", schedule
    elif document.get("optimizer._component_") and not document.get("lr_scheduler"):
        yield "lr_scheduler", "schedule.lr_scheduler_type", "constant"
        yield "lr_scheduler", "schedule.n_warmup_steps", 0
    if optimizer := _OPTIMIZERS.get(_builder(document.values.get("optimizer") or {})):
        yield from _optimizer(document, optimizer)
    if document.get("compile") is True:
        yield "compile", "model.compile", True
    if tracker := _TRACKERS.get(_builder(document.values.get("metric_logger") or {})):
        yield "metric_logger._component_", "tracking.log_with", tracker


def _of_folder(document: Document) -> Iterator[tuple[str, str, Any]]:
    """What comes with the model's folder: its weights, its architecture, and a tokenizer that is in it."""
    inside = str(document.get("tokenizer.path")).startswith(str(document.get("checkpointer.checkpoint_dir")))
    tokenizer = ("tokenizer._component_", "tokenizer.path", "tokenizer.merges_file") if inside else ()
    for key in ("checkpointer.checkpoint_dir", "checkpointer._component_", "model._component_", *tokenizer):
        if document.has(key):
            yield key, "model.from_scratch", False


def _optimizer(document: Document, name: str) -> Iterator[tuple[str, str, Any]]:
    """The optimizer with what its class decides, and the clipping, which is off unless a file asks for it."""
    yield "optimizer._component_", "optimizer.name", name
    if "adamw" in name and document.get("optimizer.weight_decay") is None:
        yield "optimizer.weight_decay", "optimizer.weight_decay", 0.01
    betas = document.get("optimizer.betas")
    if isinstance(betas, list) and len(betas) == len(_BETAS):
        for key, beta in zip(_BETAS, betas, strict=True):
            yield "optimizer.betas", f"optimizer.{key}", beta
    if document.get("clip_grad_norm") is None:
        yield "clip_grad_norm", "optimizer.gradient_clipping", 0.0


def _targets(document: Document, built: str) -> Iterator[tuple[str, str, Any]]:
    """The layers that get the adapter, by the names that transformers has for them."""
    named = [_ATTENTION.get(str(name), str(name)) for name in data_set.listed(document.get("model.lora_attn_modules"))]
    with_mlp = document.get("model.apply_lora_to_mlp") is True
    layers = [*named, *(_MLP if with_mlp else ())]
    if not layers:
        return
    fused = dict.fromkeys(_FUSED.get(name, name) if "phi3" in built else name for name in layers)
    said = "all-linear" if set(layers) >= _ALL else ",".join(fused)
    for key in ("lora_attn_modules", *(("apply_lora_to_mlp",) if with_mlp else ())):
        yield f"model.{key}", "model.lora_targets", said


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
        "warmup_steps": "lr_scheduler.num_warmup_steps",
        "logging_steps": "log_every_n_steps",
        "seed": "seed",
        "project": "metric_logger.project",
        "run_name": "metric_logger.name",
    },
    stops_at_duplicates=True,
    interpolates=True,
    alike={
        "device": ("cuda",),
        "shuffle": (True,),
        "loss._component_": (*_LOSSES, "torch.nn.CrossEntropyLoss"),
        "optimizer.fused": (),
        "log_peak_memory_stats": (),
        "checkpointer.output_dir": (),
        "checkpointer.checkpoint_files": (),
        "checkpointer.model_type": (),
        "metric_logger.log_dir": (),
    },
    of_plan=_of_plan,
    data=_data,
)
