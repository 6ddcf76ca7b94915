"""Quantized weights in files of training tools."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule


@rule("TW806", level=Level.ERROR, field="quantization")
def quantized_weights_need_an_adapter(tool_file: ToolFile) -> Violations:
    """A model loaded in 4 or 8 bits can only be trained with an adapter.

    Without it: the tool stops, or the Trainer does: `You cannot perform fine-tuning on purely quantized models`.
    Why: gradients cannot change weights that are rounded to 16 or 256 values.
    Instead: train LoRA on top, or load the model unquantized.
    Source: read in transformers 5.23.0, Axolotl 0.18.0, LLaMA-Factory 0.9.6, ms-swift 4.6.0 and TRL 1.10.0
    """
    key = tool_file.tool.quantized(tool_file.document)
    if key and not tool_file.tool.adapted(tool_file.document):
        yield violation(
            "{key} loads a quantized model, but no adapter is trained on it; {name} stops",
            remedy("train LoRA, or remove {key}", key=key),
            where=key,
            key=key,
            name=tool_file.name,
        )
