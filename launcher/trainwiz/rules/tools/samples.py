"""Packing, streaming and evaluation data in files of training tools."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import lacking, shown


@rule("TW808", level=Level.WARNING, field="packing")
def packed_samples_stay_apart(tool_file: ToolFile) -> Violations:
    """Samples packed into one row must not attend to each other.

    Without it: each sample is silently trained with unrelated earlier samples of its row as context.
    Why: packing only concatenates samples. Another key decides whether attention stops between them.
    Instead: Axolotl: attn_implementation: flash_attention_2; LLaMA-Factory: neat_packing: true; ms-swift: attn_impl:
    flash_attention_2; TRL: attn_implementation: flash_attention_2 with packing_strategy bfd.
    Source: read in Axolotl 0.18.0, LLaMA-Factory 0.9.6, ms-swift 4.6.0 and TRL 1.10.0
    """
    key = tool_file.tool.separated(tool_file.document)
    if key:
        yield violation(
            "{key} puts several samples into one row, where they attend to each other",
            remedy("choose an attention implementation that keeps them apart: trainwiz explain TW808"),
            where=key,
            key=key,
        )


@rule("TW809", level=Level.ERROR, field="eval_strategy")
def there_is_something_to_evaluate_on(tool_file: ToolFile) -> Violations:
    """An evaluation needs data.

    Without it: the tool stops once the model is loaded: `You have set args.eval_strategy to … but you didn't pass an
    eval_dataset`.
    Why: the schedule of evaluations and the data for them are separate keys.
    Instead: set evaluation data or hold out a share of the training data; or do not evaluate.
    Source: seen with transformers 5.23.0; read in LLaMA-Factory 0.9.6 and ms-swift 4.6.0
    """
    strategy = tool_file.value("eval_strategy")
    if strategy not in (None, False, "no") and not tool_file.tool.evaluation_data(tool_file.document):
        yield violation(
            "{key}: {value}, but there is no evaluation data; {name} stops",
            remedy("set evaluation data, or set {key}: no", key=tool_file.key("eval_strategy")),
            where=tool_file.key("eval_strategy"),
            key=tool_file.key("eval_strategy"),
            value=shown(strategy),
            name=tool_file.name,
        )


@rule("TW810", level=Level.ERROR, field="streaming")
def a_stream_has_an_end(tool_file: ToolFile) -> Violations:
    """Streamed data needs a number of updates.

    Without it: the tool stops, since neither the end nor the learning rates can be computed.
    Why: a stream has no length.
    Instead: set max_steps.
    Source: read in Axolotl 0.18.0, LLaMA-Factory 0.9.6, ms-swift 4.6.0 and transformers 5.23.0
    """
    key = tool_file.key("streaming")
    if key and tool_file.on("streaming") and tool_file.count("max_steps") is None:
        yield lacking(tool_file, key, tool_file.key("max_steps"))
