"""ms-swift's YAML, and the arguments of `swift sft` in a shell script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainwiz.config.document import Document
from trainwiz.config.tools import data_set
from trainwiz.config.tools.data_set import DataSet, NamedData
from trainwiz.config.tools.tool import Tool, ToolFile, switched_on
from trainwiz.config.tools.trainer import DEFAULTS, WORDS

_OWN = ("tuner_type", "train_type", "split_dataset_ratio", "model_author", "rlhf_type", "torch_dtype", "val_dataset")
_PROGRAMS = ("swift sft", "swift pt", "swift rlhf")
_MEGATRON = ("micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "train_iters", "use_ray")
"""What only files for its other trainers have, Megatron and Ray, which take other arguments."""


def _recognized(document: Document) -> bool:
    if document.syntax == "shell":
        return document.get("program") in _PROGRAMS
    values = document.values
    if any(key in values for key in _MEGATRON):
        return False
    return isinstance(values.get("model"), str) and "dataset" in values and any(key in values for key in _OWN)


def _quantized(document: Document) -> str | None:
    return "quant_bits" if document.get("quant_bits") is not None and document.get("quant_method") == "bnb" else None


_OTHERWISE = {
    "per_device_train_batch_size": 1,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine",
    "logging_steps": 5,
    "lora_rank": 8,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "eval_part": 0.0,
}
"""What it has otherwise than transformers' Trainer; the rate depends on what is trained, the accumulation on ranks."""
_HALVES = (1, 2, 4, 8, 16)
"""Where no accumulation is given, it makes 16 samples of all ranks' batches."""
_RATES = {True: 1e-5, False: 1e-4}
"""Its learning rate for all weights, and for an adapter."""


def _of_plan(document: Document) -> Iterator[tuple[str, str, Any]]:
    """What it decides by other settings, where a file leaves it out."""
    whole = "full" in (document.get("tuner_type"), document.get("train_type"))
    if document.get("learning_rate") is None:
        yield "learning_rate", "optimizer.learning_rate", _RATES[whole]
    if (
        document.get("gradient_accumulation_steps") is None
        and document.get("per_device_train_batch_size", 1) in _HALVES
    ):
        yield "gradient_accumulation_steps", "batch.real_batch_size", max(_HALVES)
    if document.get("gradient_checkpointing") is None:
        yield "gradient_checkpointing", "model.activation_checkpointing", "full"
    if isinstance(kind := document.get("torch_dtype"), str) and kind in ("bfloat16", "float16", "float32"):
        yield "torch_dtype", "precision.mixed_precision", {"bfloat16": "bf16", "float16": "fp16"}.get(kind, "no")


_WORDS = {
    "messages": "messages",
    "conversations": "messages",
    "conversation": "messages",
    "system": "system",
    "tools": "tools",
    "history": "history",
    "query": "prompt",
    "prompt": "prompt",
    "instruction": "prompt",
    "input": "input",
    "response": "completion",
    "output": "completion",
    "rejected_response": "rejected",
    "label": "label",
}
"""Its names of columns, by the words of a plan."""


def _data(tool_file: ToolFile) -> Iterator[NamedData]:
    documents = tool_file.document.syntax == "shell" and tool_file.get("program") == "swift pt"
    columns, beside = _columns(tool_file.get("columns"), compares=bool(tool_file.get("rlhf_type")))
    for key in ("dataset", "val_dataset"):
        named = [_named(name, tool_file) for name in _names(tool_file, key)]
        yield NamedData(
            key=key,
            evaluates=key == "val_dataset",
            sets=tuple(replace(each, columns=columns, beside=beside) for each in named),
            task="causal_lm" if documents else "",
            with_keys=("columns", "use_hf") if named else (),
        )


def _names(tool_file: ToolFile, key: str) -> list[str]:
    names = [str(name) for name in data_set.listed(tool_file.get(key))]
    return " ".join(names).split() if tool_file.document.syntax == "shell" else names


def _named(name: str, tool_file: ToolFile) -> DataSet:
    """The dataset of `HF::organization/name:subset/subset#rows`."""
    hub, mark, rest = name.rpartition("::")
    rest, _, rows = rest.partition("#")
    path, _, subsets = rest.partition(":")
    from_hub = switched_on(tool_file.get("use_hf")) or str(tool_file.get("variables.USE_HF")) in ("1", "true")
    if not data_set.is_file(path) and not (hub.lower() == "hf" if mark else from_hub):
        return data_set.of_model_scope(path)
    found = [data_set.of_hub(path, subset or None) for subset in subsets.split("/")]
    return DataSet(
        sources=tuple(source for each in found for source in each.sources),
        fewer=(f"#{rows}",) if rows else (),
    )


def _columns(given: Any, *, compares: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """The column of each word, and what the file says of other columns."""
    if isinstance(given, str):  # JSON, in a shell script without its quotes
        given = dict(re.findall(r"""["']?([^{}:,"']+?)["']?\s*:\s*["']?([^{}:,"']+)""", given))
    words = {**_WORDS, "response": "chosen"} if compares else _WORDS
    pairs = (
        {str(column).strip(): str(name).strip() for column, name in given.items()} if isinstance(given, Mapping) else {}
    )
    columns = {words[name]: column for column, name in pairs.items() if name in words}
    return columns, tuple(f"columns.{column}: {name}" for column, name in pairs.items() if name not in words)


TOOL = Tool(
    name="ms-swift",
    version="4.6.0",
    recognized=_recognized,
    marks="model, dataset, tuner_type",
    words={
        **{word: key for word, key in WORDS.items() if word not in ("eval_strategy", "load_best_model_at_end")},
        "length": "max_length",
        "model": "model",
        "packing": "packing",
        "streaming": "streaming",
        "adapter": "tuner_type",
        "task": "rlhf_type",
        "lora_rank": "lora_rank",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
        "rslora": "use_rslora",
        "dora": "use_dora",
        "modules_to_save": "modules_to_save",
        "eval_part": "split_dataset_ratio",
        "report_to": "report_to",
        "run_name": "run_name",
    },
    defaults={
        **{
            word: value
            for word, value in DEFAULTS.items()
            if word not in (*_OTHERWISE, "learning_rate", "gradient_accumulation_steps")
        },
        **_OTHERWISE,
    },
    usual_adapter="lora",
    older={"tuner_type": "train_type"},
    of_plan=_of_plan,
    alike={"program": _PROGRAMS, "tuner_type": ("full",), "train_type": ("full",), "dataset_num_proc": ()},
    quantized=_quantized,
    adapted=lambda document: "full" not in (document.get("tuner_type"), document.get("train_type")),
    data=_data,
)
