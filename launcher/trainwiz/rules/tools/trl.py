"""What TRL's configuration classes refuse."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.tool import as_number, switched_on
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import clash, lacking


@rule("TW871", level=Level.ERROR, field="packing")
def packing_has_a_length(tool_file: ToolFile) -> Violations:
    """packing needs max_length.

    Without it: TRL stops once the data is read: `When packing is enabled, max_length can't be None`.
    Why: rows are filled up to this length.
    Instead: remove max_length: null, or packing.
    Source: read in TRL 1.10.0 (`SFTTrainer`)
    """
    if switched_on(tool_file.get("packing")) and tool_file.has("max_length") and tool_file.get("max_length") is None:
        yield lacking(tool_file, "packing", "max_length")


@rule("TW872", level=Level.ERROR, field="num_generations")
def a_group_has_several_answers(tool_file: ToolFile) -> Violations:
    """num_generations must be at least 2, and divide generation_batch_size.

    Without it: TRL stops: `GRPO requires at least 2 generations per prompt`, or `generation_batch_size must be
    divisible by num_generations`.
    Why: the answers to a prompt are compared with each other.
    Instead: set num_generations to a divisor of generation_batch_size.
    Source: seen with TRL 1.16.0 (`GRPOConfig`)
    """
    answers, batch = as_number(tool_file.get("num_generations")), as_number(tool_file.get("generation_batch_size"))
    if answers is not None and answers < 2:
        yield violation(
            "num_generations: {answers} leaves nothing to compare an answer with; {name} stops",
            remedy("set num_generations to at least 2"),
            answers=f"{answers:g}",
            name=tool_file.name,
        )
    elif answers and batch and batch % answers:
        yield clash(tool_file, "num_generations", "generation_batch_size")


@rule("TW873", level=Level.ERROR, field="generation_batch_size")
def one_size_of_generation(tool_file: ToolFile) -> Violations:
    """generation_batch_size and steps_per_generation exclude each other; auto_find_batch_size excludes groups.

    Without it: TRL stops: `'generation_batch_size' and 'steps_per_generation' can not be both configured at the same
    time`, or `auto_find_batch_size is not supported by GRPO`.
    Why: one determines the other, and a shrinking batch would split groups.
    Instead: keep one of the two.
    Source: seen with TRL 1.16.0 (`GRPOConfig`); read in TRL 1.10.0
    """
    if tool_file.get("generation_batch_size") is not None and tool_file.get("steps_per_generation") is not None:
        yield clash(tool_file, "generation_batch_size", "steps_per_generation")
    if switched_on(tool_file.get("auto_find_batch_size")) and tool_file.get("num_generations") is not None:
        yield clash(tool_file, "auto_find_batch_size", "num_generations")


@rule("TW874", level=Level.ERROR, field="loss_weights")
def a_weight_for_each_loss(tool_file: ToolFile) -> Violations:
    """loss_weights must have as many numbers as loss_type has losses.

    Without it: TRL stops: `` `loss_weights` must have the same length as `loss_type` ``.
    Why: each loss is multiplied by its own weight.
    Instead: give one weight for each loss.
    Source: seen with TRL 1.16.0 (`DPOConfig`)
    """
    weights, losses = tool_file.get("loss_weights"), tool_file.get("loss_type")
    n = len(losses) if isinstance(losses, list) else 1
    if isinstance(weights, list) and losses is not None and len(weights) != n:
        yield clash(tool_file, "loss_weights", "loss_type")


@rule("TW875", level=Level.ERROR, field="log_completions_hub_repo")
def uploads_need_a_log(tool_file: ToolFile) -> Violations:
    """log_completions_hub_repo needs log_completions.

    Without it: TRL stops: `log_completions_hub_repo is set, but log_completions is False`.
    Why: only logged completions are uploaded.
    Instead: set log_completions: true.
    Source: seen with TRL 1.16.0 (`GRPOConfig`)
    """
    if tool_file.get("log_completions_hub_repo") is not None and not switched_on(tool_file.get("log_completions")):
        yield lacking(tool_file, "log_completions_hub_repo", "log_completions: true", meant=True)
