"""Warm-up, evaluations and saves in files of training tools."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import lacking, shown

_EVALUATING = ("reduce_lr_on_plateau", "greedy")


@rule("TW803", level=Level.ERROR, field="load_best_model_at_end")
def the_best_model_is_saved(tool_file: ToolFile) -> Violations:
    """load_best_model_at_end needs evaluations and saves at the same moments.

    Without it: transformers stops: `--load_best_model_at_end requires the save and eval strategy to match`, or
    `requires the saving steps to be a multiple of the evaluation steps`.
    Why: the best model can only be loaded if it was saved when it was evaluated.
    Instead: give both the same strategy, and save every evaluation or every n-th.
    Source: seen with transformers 5.23.0 (`TrainingArguments._validate_args`)
    """
    if not tool_file.on("load_best_model_at_end") or tool_file.value("save_strategy") == "best":
        return
    key, evaluating, saving = (
        tool_file.key(word) for word in ("load_best_model_at_end", "eval_strategy", "save_strategy")
    )
    strategies = [_strategy(tool_file, "eval", "no"), _strategy(tool_file, "save", "steps")]
    steps = [tool_file.number(word) for word in ("save_steps", "eval_steps")]
    if strategies[0] != strategies[1]:
        yield violation(
            "{key} needs equal strategies, but {evaluating} is {one} and {saving} is {other}",
            remedy("set {evaluating} and {saving} to the same value", evaluating=evaluating, saving=saving),
            where=key,
            key=key,
            evaluating=evaluating,
            saving=saving,
            one=strategies[0],
            other=strategies[1],
        )
    elif strategies[0] == "steps" and all(n and n >= 1 for n in steps) and (steps[0] or 0) % (steps[1] or 1):
        yield violation(
            "{saving}: {saved} is not a multiple of {evaluating}: {evaluated}, so the best model may not be saved",
            remedy(
                "set {saving} to a multiple of {evaluated}",
                saving=tool_file.key("save_steps"),
                evaluated=int(steps[1] or 1),
            ),
            where=tool_file.key("save_steps"),
            saving=tool_file.key("save_steps"),
            saved=int(steps[0] or 0),
            evaluating=tool_file.key("eval_steps"),
            evaluated=int(steps[1] or 1),
        )


def _strategy(tool_file: ToolFile, of: str, default: str) -> str:
    value = tool_file.value(f"{of}_strategy")
    if value is None and tool_file.value("evaluation_strategy") is not None and of == "eval":
        value = tool_file.value("evaluation_strategy")
    if value is None and of == "eval" and tool_file.get("do_eval") is not None and tool_file.value("eval_steps"):
        return "steps"
    return default if value is None else "no" if value is False else str(value)


@rule("TW804", level=Level.WARNING, field="warmup_steps")
def the_warm_up_ends(tool_file: ToolFile) -> Violations:
    """The warm-up must be shorter than the training.

    Without it: the learning rate rises until the last update and never reaches the configured value.
    Why: max_steps was lowered for a trial, but warmup_steps was not.
    Instead: lower warmup_steps, or set it as a share of the training.
    Source: seen with transformers 5.23.0 (`get_scheduler`)
    """
    warmup, steps = tool_file.count("warmup_steps"), tool_file.count("max_steps")
    if warmup and steps and warmup >= steps:
        yield violation(
            "{key}: {warmup} is not less than {other}: {steps}; the learning rate never reaches its value",
            remedy("lower {key}", key=tool_file.key("warmup_steps")),
            where=tool_file.key("warmup_steps"),
            key=tool_file.key("warmup_steps"),
            warmup=warmup,
            other=tool_file.key("max_steps"),
            steps=steps,
        )


@rule("TW811", level=Level.ERROR, field="lr_scheduler_type")
def a_schedule_by_evaluations_has_some(tool_file: ToolFile) -> Violations:
    """The schedules reduce_lr_on_plateau and greedy need evaluations.

    Without it: transformers stops: `lr_scheduler_type … requires an eval strategy`.
    Why: they lower the learning rate when the evaluation stops improving.
    Instead: set eval_strategy, or choose another schedule.
    Source: seen with transformers 5.23.0 (`TrainingArguments._validate_args`)
    """
    key = tool_file.key("lr_scheduler_type")
    evaluates = (
        tool_file.get("evals_per_epoch") or tool_file.get("eval_steps") or _strategy(tool_file, "eval", "no") != "no"
    )
    if tool_file.value("lr_scheduler_type") in _EVALUATING and not evaluates:
        yield lacking(tool_file, key, tool_file.key("eval_strategy"))


@rule("TW816", level=Level.HINT, field="num_train_epochs")
def updates_outweigh_epochs(tool_file: ToolFile) -> Violations:
    """If max_steps and a number of epochs are both set, only max_steps counts.

    Without it: the training ends after max_steps, regardless of the number of epochs.
    Why: in transformers, a positive max_steps overrides the epochs.
    Instead: remove one of the two.
    Source: seen with transformers 5.23.0
    """
    epochs, steps = tool_file.key("num_train_epochs"), tool_file.key("max_steps")
    if tool_file.count("max_steps") and tool_file.number("num_train_epochs"):
        yield violation(
            "{key}: {value} has no effect together with {other}: {steps}",
            remedy("remove {key}, or remove {other}", {epochs: None}, key=epochs, other=steps),
            where=epochs,
            key=epochs,
            value=shown(tool_file.get(epochs)),
            other=steps,
            steps=tool_file.count("max_steps"),
        )


@rule("TW817", level=Level.ERROR, field="dataloader_prefetch_factor")
def prefetching_needs_workers(tool_file: ToolFile) -> Violations:
    """dataloader_prefetch_factor needs dataloader_num_workers of at least 1.

    Without it: transformers stops: `--dataloader_prefetch_factor can only be set when data is loaded in a different
    process`.
    Why: only worker processes load ahead.
    Instead: set dataloader_num_workers, or remove dataloader_prefetch_factor.
    Source: seen with transformers 5.23.0 (`TrainingArguments._validate_args`)
    """
    key = tool_file.key("dataloader_prefetch_factor")
    if tool_file.number("dataloader_prefetch_factor") is not None and not tool_file.number("dataloader_num_workers"):
        yield lacking(tool_file, key, tool_file.key("dataloader_num_workers"))
