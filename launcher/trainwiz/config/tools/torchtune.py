"""torchtune's YAML."""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.config.document import Document
from trainwiz.config.tools.tool import Tool


def _recognized(document: Document) -> bool:
    blocks = [block for block in document.values.values() if isinstance(block, Mapping)]
    return any(str(block.get("_component_", "")).startswith("torchtune.") for block in blocks)


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
)
