"""Defaults for training an adapter (LoRA) beside a frozen model."""

from __future__ import annotations

from trainwiz.decide.decision import Decision
from trainwiz.message import say


def decide_adapter(d: Decision) -> None:
    """Whether there is one, its size, and what becomes of it."""
    if d.task.adapters:
        d.settle("model.adapter", "none", say("trains all weights; lora needs only a fraction of the memory"))
    else:
        d.settle("model.adapter", "none", say("only sft supports adapters"))
    rank = d.settle("model.lora_rank", 16, say("common default; increase it for data that teaches a lot"))
    d.settle("model.lora_alpha", 2 * rank, say("twice lora_rank"))
    d.settle("model.lora_targets", "all-linear", say("as good as full fine-tuning on most data (QLoRA paper)"))
    d.settle("model.merge_adapter", False, say("the adapter alone is small and can be merged later"))
