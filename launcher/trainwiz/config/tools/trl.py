"""The YAML of TRL's command line (`trl sft --config …`)."""

from __future__ import annotations

from trainwiz.config.document import Document
from trainwiz.config.tools.tool import Tool, switched_on
from trainwiz.config.tools.trainer import WORDS
from trainwiz.engines.trainer import ARGUMENTS, OLD_ARGUMENTS
from trainwiz.engines.trl import OWN_ARGUMENTS, TRIED

_DATA = ("dataset_name", "dataset_mixture", "datasets")
_OTHERS = ("stage", "finetuning_type", "template", "base_model", "tuner_type")


def _recognized(document: Document) -> bool:
    values = document.values
    own = "model_name_or_path" in values and any(key in values for key in _DATA)
    return own and not any(key in values for key in _OTHERS)


def _quantized(document: Document) -> str | None:
    return next((key for key in ("load_in_4bit", "load_in_8bit") if switched_on(document.get(key))), None)


def _packed_together(document: Document) -> str | None:
    apart = any(word in str(document.get("attn_implementation")) for word in ("flash_attention", "flash-attn"))
    cut = document.get("packing_strategy") == "wrapped"
    return "packing" if switched_on(document.get("packing")) and not apart and not cut else None


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
    },
    keys=OWN_ARGUMENTS | ARGUMENTS | OLD_ARGUMENTS,
    stops_at_unknown_keys=True,
    quantized=_quantized,
    adapted=lambda document: switched_on(document.get("use_peft")),
    adapters=(True,),
    separated=_packed_together,
)
