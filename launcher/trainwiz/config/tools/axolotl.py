"""Axolotl's YAML."""

from __future__ import annotations

from trainwiz.config.document import Document
from trainwiz.config.tools.tool import Tool, switched_on
from trainwiz.config.tools.trainer import DEFAULTS, WORDS
from trainwiz.engines.axolotl import KEYS, TRIED

_DATA = ("datasets", "pretraining_dataset", "test_datasets")
_DECIDED = ("load_best_model_at_end", "eval_strategy", "save_strategy")
"""Axolotl derives what it gives to the Trainer from more keys than these, and drops what would stop it."""
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
    return "base_model" in values and any(key in values for key in (*_DATA, *_OWN))


def _quantized(document: Document) -> str | None:
    return next((key for key in ("load_in_4bit", "load_in_8bit") if switched_on(document.get(key))), None)


def _packed_together(document: Document) -> str | None:
    named = document.get("attn_implementation")
    apart = isinstance(named, str) and any(part in named for part in _SEPARATING)
    apart = apart or bool(document.get("gemma4_hybrid_attn_impl"))
    apart = apart or any(switched_on(document.get(key)) for key in _OLD_SWITCHES)
    return None if apart or not switched_on(document.get("sample_packing")) else "sample_packing"


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
)
