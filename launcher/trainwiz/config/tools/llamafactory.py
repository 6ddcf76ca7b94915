"""LLaMA-Factory's YAML."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainwiz.config.document import Document
from trainwiz.config.tools import data_set
from trainwiz.config.tools.data_set import DataSet, NamedData
from trainwiz.config.tools.tool import Tool, ToolFile, as_number, switched_on
from trainwiz.config.tools.trainer import DEFAULTS, WORDS
from trainwiz.engines.llamafactory import OWN_ARGUMENTS, TRIED
from trainwiz.engines.trainer import ARGUMENTS, OLD_ARGUMENTS
from trainwiz.message import say

_OWN = ("finetuning_type", "stage", "cutoff_len", "dataset_dir", "export_dir", "infer_backend", "lora_target")


def _recognized(document: Document) -> bool:
    values = document.values
    own = sum(key in values for key in _OWN)
    return "model_name_or_path" in values and (own > 1 or (own == 1 and "template" in values))


def _quantized(document: Document) -> str | None:
    return "quantization_bit" if document.get("quantization_bit") is not None else None


def _packed_together(document: Document) -> str | None:
    packed = switched_on(document.get("packing")) and document.get("stage", "sft") == "sft"
    return "packing" if packed and not switched_on(document.get("neat_packing")) else None


def _evaluates_on_something(document: Document) -> bool:
    return document.get("eval_dataset") is not None or (as_number(document.get("val_size")) or 0) > 1e-6


_CATALOGUE = "dataset_info.json"
_ONLINE, _REMOTE = "ONLINE", "REMOTE:"
"""What dataset_dir says where names are ids of the hub, and where the catalogue is there."""
_COLUMNS = {
    "prompt": "prompt",
    "query": "input",
    "response": "completion",
    "history": "history",
    "messages": "messages",
    "system": "system",
    "tools": "tools",
    "chosen": "chosen",
    "rejected": "rejected",
    "kto_tag": "label",
}
"""Its words for columns, by those of a plan."""
_READ = frozenset(
    {
        "hf_hub_url",
        "ms_hub_url",
        "om_hub_url",
        "file_name",
        "formatting",
        "ranking",
        "subset",
        "split",
        "columns",
        "tags",
    }
)
_FEWER = "num_samples"
_TAGS = {
    "role_tag": {"from", "role"},
    "content_tag": {"value", "content"},
    "user_tag": {"human", "user"},
    "assistant_tag": {"gpt", "assistant"},
    "observation_tag": {"observation", "tool"},
    "function_tag": {"function_call"},
    "system_tag": {"system"},
}
"""The names in messages that a project recognizes by default."""


def _catalogue(document: Document) -> str | None:
    folder = str(document.get("dataset_dir") or "data")
    return None if folder == _ONLINE or folder.startswith(_REMOTE) else posixpath.join(folder, _CATALOGUE)


def _data(tool_file: ToolFile) -> Iterator[NamedData]:
    documents = tool_file.get("stage") == "pt"
    for key in ("dataset", "eval_dataset"):
        said = tool_file.get(key)
        names = [name.strip() for name in said.split(",")] if isinstance(said, str) else data_set.listed(said)
        yield NamedData(
            key=key,
            evaluates=key == "eval_dataset",
            sets=tuple(_named(tool_file, str(name), documents=documents) for name in names),
            with_keys=("dataset_dir",) if names else (),
        )


def _named(tool_file: ToolFile, name: str, *, documents: bool) -> DataSet:
    if tool_file.get("dataset_dir") == _ONLINE:
        return data_set.of_hub(name)
    listed = tool_file.catalogue
    if listed is None:
        return DataSet(problem=say("{name} is a name of {file}, which was not found", name=name, file=_CATALOGUE))
    entry = listed.values.get(name)
    if not isinstance(entry, Mapping):
        return DataSet(problem=say("{name} is not in {file}", name=name, file=listed.path))
    if entry.get("ms_hub_url") and not entry.get("hf_hub_url"):
        return data_set.of_model_scope(str(entry["ms_hub_url"]))
    columns = entry.get("columns") if isinstance(entry.get("columns"), Mapping) else {}
    tags = entry.get("tags") if isinstance(entry.get("tags"), Mapping) else {}
    file = entry.get("file_name")
    found = data_set.of_hub(entry.get("hf_hub_url"), entry.get("subset"), entry.get("split"))
    if isinstance(file, str) and "hf_hub_url" not in entry:
        found = data_set.of_hub(posixpath.join(posixpath.dirname(listed.path), file))
    return replace(
        found,
        columns=_columns(columns or {}, documents=documents),
        beside=(
            *data_set.said(entry, _READ | {_FEWER}),
            *(f"columns.{each}" for each in data_set.said(columns or {}, frozenset(_COLUMNS))),
            *(f"tags.{tag}: {word}" for tag, word in (tags or {}).items() if word not in tuple(_TAGS.get(tag, ()))),
        ),
        fewer=(*found.fewer, *((f"{_FEWER}: {entry[_FEWER]}",) if entry.get(_FEWER) else ())),
    )


def _columns(named: Mapping[str, Any], *, documents: bool) -> dict[str, str]:
    if documents:
        return {data_set.TEXT: str(named.get("prompt") or "instruction")}
    return {_COLUMNS[key]: str(name) for key, name in named.items() if key in _COLUMNS and name}


TOOL = Tool(
    name="LLaMA-Factory",
    version=TRIED,
    recognized=_recognized,
    marks="model_name_or_path, stage, finetuning_type, template",
    words={
        **WORDS,
        "adapter": "finetuning_type",
        "task": "stage",
        "length": "cutoff_len",
        "model": "model_name_or_path",
        "streaming": "streaming",
        "packing": "packing",
        "lora_rank": "lora_rank",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
        "rslora": "use_rslora",
        "dora": "use_dora",
        "modules_to_save": "additional_target",
        "special_tokens": "add_special_tokens",
        "added_tokens": "add_tokens",
        "resized": "resize_vocab",
        "eval_part": "val_size",
        "preference_beta": "pref_beta",
        "max_rows": "max_samples",
        "report_to": "report_to",
        "run_name": "run_name",
    },
    defaults={**DEFAULTS, "eval_part": 0.0, "lora_rank": 8, "lora_dropout": 0.0},
    usual_adapter="lora",
    alike={
        "do_train": (True,),
        "finetuning_type": ("full",),
        "overwrite_output_dir": (),
        "overwrite_cache": (),
        "preprocessing_num_workers": (),
        "plot_loss": (),
        "save_only_model": (False,),
    },
    keys=OWN_ARGUMENTS | ARGUMENTS | OLD_ARGUMENTS,
    leaves_defaults=True,
    stops_at_unknown_keys=True,
    stops_at_duplicates=True,
    quantized=_quantized,
    adapted=lambda document: document.get("finetuning_type", "lora") in ("lora", "oft"),
    separated=_packed_together,
    evaluation_data=_evaluates_on_something,
    data=_data,
    catalogue=_catalogue,
)
