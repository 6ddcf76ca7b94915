"""ms-swift's YAML, and the arguments of `swift sft` in a shell script."""

from __future__ import annotations

from trainwiz.config.document import Document
from trainwiz.config.tools.tool import Tool
from trainwiz.config.tools.trainer import WORDS

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
    },
    quantized=_quantized,
    adapted=lambda document: "full" not in (document.get("tuner_type"), document.get("train_type")),
)
