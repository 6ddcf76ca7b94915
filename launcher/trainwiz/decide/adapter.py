"""Defaults for training an adapter (LoRA) beside a frozen model."""

from __future__ import annotations

from trainwiz.decide.decision import Decision
from trainwiz.message import say


def decide_adapter(d: Decision) -> None:
    """Decide whether there is an adapter, its size, and whether it is merged."""
    d.settle_default("model.frozen", say("trains all of them"))
    d.settle_default("model.neftune_alpha", say("noise helps only some fine-tuning on few conversations"))
    whole = say("trains all weights; lora needs only a fraction of the memory")
    d.settle_default("model.adapter", whole if d.task.adapters else say("only sft and preference support adapters"))
    rank = d.settle_default("model.lora_rank", say("common default; increase it for data that teaches a lot"))
    d.settle("model.lora_alpha", 2 * rank, say("twice lora_rank"))
    d.settle_default("model.lora_targets", say("as good as full fine-tuning on most data (QLoRA paper)"))
    d.settle_default("model.lora_dropout", say("one pass over the data rarely needs dropout"))
    d.settle_default("model.lora_rslora", say("alpha / rank is the usual scale"))
    d.settle_default("model.merge_adapter", say("the adapter alone is small and can be merged later"))
    d.settle_default("model.output_dtype", say("the trained model takes the place of the one that was loaded"))
