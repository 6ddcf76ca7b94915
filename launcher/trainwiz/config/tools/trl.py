"""The YAML of TRL's command line (`trl sft --config …`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainwiz.config.document import Document
from trainwiz.config.tools import data_set
from trainwiz.config.tools.data_set import NamedData
from trainwiz.config.tools.tool import Tool, ToolFile, switched_on
from trainwiz.config.tools.trainer import WORDS
from trainwiz.engines.trainer import ARGUMENTS, OLD_ARGUMENTS
from trainwiz.engines.trl import OWN_ARGUMENTS, TRIED

_DATA = ("dataset_name", "dataset_mixture", "datasets")
_FEW = 3
_SHARE = 6
"""More unknown keys than these, and than one in so many, are no misspellings."""
_OTHERS = ("stage", "finetuning_type", "template", "base_model", "tuner_type")


def _recognized(document: Document) -> bool:
    values = document.values
    own = "model_name_or_path" in values and any(key in values for key in _DATA)
    if not own or any(key in values for key in _OTHERS):
        return False
    # TRL refuses a key that it does not know; a file with many is for a script with arguments of its own.
    unknown = len({key for key in values if isinstance(key, str)} - OWN_ARGUMENTS - ARGUMENTS - OLD_ARGUMENTS)
    return unknown <= _FEW or unknown * _SHARE <= len(values)


def _quantized(document: Document) -> str | None:
    return next((key for key in ("load_in_4bit", "load_in_8bit") if switched_on(document.get(key))), None)


def _packed_together(document: Document) -> str | None:
    apart = any(word in str(document.get("attn_implementation")) for word in ("flash_attention", "flash-attn"))
    cut = document.get("packing_strategy") == "wrapped"
    return "packing" if switched_on(document.get("packing")) and not apart and not cut else None


def _data(tool_file: ToolFile) -> Iterator[NamedData]:
    name, subset = tool_file.get("dataset_name"), tool_file.get("dataset_config")
    if name:
        train = data_set.of_hub(name, subset, tool_file.get("dataset_train_split"))
        yield NamedData(key="dataset_name", sets=(train,), with_keys=("dataset_config", "dataset_train_split"))
        part = tool_file.get("dataset_test_split")
        if part and train.sources:
            held_out = data_set.of_hub(name, subset, part)
            yield NamedData(key="dataset_test_split", evaluates=True, sets=(held_out,))
    entries = [entry if isinstance(entry, Mapping) else {} for entry in data_set.listed(tool_file.get("datasets"))]
    known = frozenset({"path", "name", "split"})
    sets = tuple(
        data_set.of_hub(each.get("path"), each.get("name"), each.get("split"), beside=data_set.said(each, known))
        for each in entries
    )
    yield NamedData(key="datasets", sets=sets)


TOOL = Tool(
    name="TRL",
    version=TRIED,
    recognized=_recognized,
    marks="model_name_or_path, dataset_name",
    words={
        **WORDS,
        "length": "max_length",
        "model": "model_name_or_path",
        "packing": "packing",
        "adapter": "use_peft",
        "streaming": "dataset_streaming",
        "lora_rank": "lora_r",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
        "rslora": "use_rslora",
        "dora": "use_dora",
        "modules_to_save": "lora_modules_to_save",
    },
    keys=OWN_ARGUMENTS | ARGUMENTS | OLD_ARGUMENTS,
    stops_at_unknown_keys=True,
    quantized=_quantized,
    adapted=lambda document: switched_on(document.get("use_peft")),
    adapters=(True,),
    separated=_packed_together,
    data=_data,
)
