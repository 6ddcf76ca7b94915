"""LLaMA-Factory's YAML."""

from __future__ import annotations

from trainwiz.config.document import Document
from trainwiz.config.tools.tool import Tool, as_number, switched_on
from trainwiz.config.tools.trainer import DEFAULTS, WORDS
from trainwiz.engines.llamafactory import OWN_ARGUMENTS, TRIED
from trainwiz.engines.trainer import ARGUMENTS, OLD_ARGUMENTS

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
        "modules_to_save": "additional_target",
        "special_tokens": "add_special_tokens",
        "added_tokens": "add_tokens",
        "resized": "resize_vocab",
        "eval_part": "val_size",
        "preference_beta": "pref_beta",
    },
    defaults={**DEFAULTS, "eval_part": 0.0, "lora_rank": 8},
    keys=OWN_ARGUMENTS | ARGUMENTS | OLD_ARGUMENTS,
    leaves_defaults=True,
    stops_at_unknown_keys=True,
    stops_at_duplicates=True,
    quantized=_quantized,
    adapted=lambda document: document.get("finetuning_type", "lora") in ("lora", "oft"),
    separated=_packed_together,
    evaluation_data=_evaluates_on_something,
)
