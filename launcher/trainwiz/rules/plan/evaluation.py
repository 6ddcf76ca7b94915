"""When the model is evaluated, what is measured, and what is decided by it."""

from __future__ import annotations

from trainwiz import tasks
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import total_updates
from trainwiz.rules.versions import install, lacks
from trainwiz.tasks.generation import chosen

_DECIDED_BY_IT = (
    "evaluation.evaluation_steps",
    "evaluation.best_metric",
    "evaluation.patience",
    "evaluation.gather_outputs",
    "evaluation.generation_metrics",
)


@rule("TW421", level=Level.ERROR, field="data.eval")
def evaluation_has_data(plan: Plan) -> Violations:
    """The evaluation keys need evaluation data.

    Without it: nothing is evaluated. No checkpoint is chosen, training never ends early, and the scripts are the
    same as without these keys.
    Why: data.eval is empty.
    Instead: set data.eval to a part of the training data, such as 5%, or to other data.
    Source: the generated train.py
    """
    asked = [key for key in _DECIDED_BY_IT if plan.get(key)]
    if plan.data.eval is None and asked:
        yield violation(
            "{key} is set, but data.eval is empty",
            remedy("set data.eval to a part of the training data (5%), or to other data"),
            key=asked[0],
            where=asked[0],
        )


@rule("TW422", level=Level.ERROR, field="evaluation.best_metric")
def metric_is_measured(plan: Plan) -> Violations:
    """The best checkpoint must be chosen by a metric of the task, in the right direction.

    Without it: the first evaluation ends the training with `is not among the metrics of the evaluation`; with the wrong
    direction, the worst checkpoint becomes the model.
    Why: a task has only its own metrics. Some (eval_auc, eval_spearman) are not sums over samples, and need the
    outputs for all samples: evaluation.gather_outputs. Metrics of your own code (custom) have no known direction.
    Instead: choose one of the metrics that the message lists, and leave best_mode at auto.
    Source: the generated task.py and evaluation.py
    """
    evaluation, task = plan.evaluation, tasks.of(plan)
    if evaluation.gather_outputs and task.own_code:
        yield violation(
            "evaluation.gather_outputs is true, but the outputs of your own code are always gathered",
            remedy("set evaluation.gather_outputs to false; write evaluation_outputs and metrics in task.py"),
            where="evaluation.gather_outputs",
        )
        return
    if evaluation.gather_outputs and task.gathered_metrics is None:
        yield violation(
            "evaluation.gather_outputs is true, but the task {task} has no metrics that need all outputs",
            setting("evaluation.gather_outputs", False),
            task=plan.task,
            where="evaluation.gather_outputs",
        )
        return
    metric, mode = evaluation.best_metric, evaluation.best_mode
    if metric is None:
        return
    known = task.measured(gathered=evaluation.gather_outputs, written=evaluation.generation_metrics)
    if metric in known:
        if mode not in ("auto", known[metric]):
            yield violation(
                "evaluation.best_mode is {mode}, but for {metric} it should be {right}",
                setting("evaluation.best_mode", "auto"),
                mode=mode,
                metric=metric,
                right=known[metric],
                where="evaluation.best_mode",
            )
    elif metric in (task.gathered_metrics or {}):
        yield violation(
            "evaluation.best_metric {metric} needs the outputs for all samples",
            setting("evaluation.gather_outputs", True),
            metric=metric,
        )
    elif not task.own_code:
        yield violation(
            "evaluation.best_metric {metric} is not available; the task {task} has {legal}",
            setting("evaluation.best_metric", "eval_loss"),
            metric=metric,
            task=plan.task,
            legal=", ".join({**known, **(task.gathered_metrics or {})}),
        )
    elif mode == "auto":
        yield violation(
            "evaluation.best_mode is auto, but it is not known whether a lower or a higher {metric} is better",
            remedy("set evaluation.best_mode to min or max"),
            metric=metric,
            where="evaluation.best_mode",
        )


@rule("TW423", level=Level.ERROR, field="evaluation.patience")
def patience_has_a_metric(plan: Plan) -> Violations:
    """Early stopping needs a metric.

    Without it: the training never ends early.
    Why: evaluation.patience counts the evaluations since the best one, which evaluation.best_metric determines.
    Instead: set evaluation.best_metric, for example to eval_loss.
    Source: the generated evaluation.py
    """
    if plan.evaluation.patience and plan.evaluation.best_metric is None:
        yield violation(
            "evaluation.patience is {patience}, but evaluation.best_metric is empty",
            setting("evaluation.best_metric", "eval_loss"),
        )


@rule("TW424", level=Level.WARNING, field="evaluation.evaluation_steps")
def evaluations_come_before_the_end(plan: Plan, project: Project) -> Violations:
    """evaluation_steps must not exceed the total number of updates.

    Without it: the model is evaluated once, at the end, so there is nothing to choose from.
    Why: evaluation_steps counts updates, and the training has fewer.
    Instead: evaluate often enough that the best checkpoint is close to the best moment.
    Source: the generated evaluation.py
    """
    every, total = plan.evaluation.evaluation_steps, total_updates(plan, project)
    if total is not None and every > total:
        yield violation(
            "{key} is {value}, but the whole training has only {total} updates",
            setting("evaluation.evaluation_steps", max(1, total // 10)),
            key="evaluation.evaluation_steps",
            value=every,
            total=total,
        )


@rule("TW455", level=Level.ERROR, field="evaluation.generation_metrics")
def answers_can_be_written(plan: Plan, project: Project) -> Violations:
    """Generation metrics need a model that generates text, data with answers, and the accelerate engine.

    Without it: nothing is generated, and the scripts are the same as without these metrics.
    Why: only causal_lm and sft train a model that continues text. With data.train_on all, sft does not mark where an
    answer begins. The Colossal-AI loop does not support generation.
    Instead: leave evaluation.generation_metrics empty and choose by eval_loss, or train with accelerate.
    Source: the generated generation.py
    """
    task = tasks.of(plan)
    if plan.evaluation.generation_metrics is None:
        return
    empty = remedy("leave {key} empty", {"evaluation.generation_metrics": None}, key="evaluation.generation_metrics")
    if not task.packs:
        yield violation(
            "{key} is {value}, but the task {task} generates no text",
            empty,
            key="evaluation.generation_metrics",
            value=plan.evaluation.generation_metrics,
            task=plan.task,
        )
    elif plan.engine != "accelerate":
        yield violation(
            "{key} is {value}, but the {engine} loop does not support generation",
            empty,
            key="evaluation.generation_metrics",
            value=plan.evaluation.generation_metrics,
            engine=plan.engine,
        )
    elif task.talks and plan.data.train_on == "all":
        yield violation(
            "{key} is {value}, but with data.train_on all the start of the answers is unknown",
            setting("data.train_on", "answers"),
            key="evaluation.generation_metrics",
            value=plan.evaluation.generation_metrics,
        )
    elif (most := project.model.max_positions if project.model else None) and plan.evaluation.max_new_tokens >= most:
        yield violation(
            "evaluation.max_new_tokens is {value}, which leaves no room for a prompt: {model} has {most} positions",
            setting("evaluation.max_new_tokens", most // 4),
            where="evaluation.max_new_tokens",
            value=plan.evaluation.max_new_tokens,
            model=plan.model.name,
            most=most,
        )


@rule("TW456", level=Level.ERROR, field="evaluation.generation_metrics")
def written_text_can_be_compared(plan: Plan, machine: Machine) -> Violations:
    """BLEU needs sacrebleu, ROUGE needs rouge-score.

    Without it: every rank fails with `ModuleNotFoundError: No module named 'sacrebleu'` (or 'rouge_score').
    Why: published numbers are those of these packages. exact_match needs none.
    Instead: run `pip install -r requirements.txt` in the project, or the command that the finding shows.
    Source: https://github.com/mjpost/sacrebleu; https://pypi.org/project/rouge-score
    """
    needed = {metric.package: metric for metric in chosen(plan.evaluation.generation_metrics).values()}
    missing = [name for name in needed if name and lacks(machine, name)]
    if missing and machine.interpreter:
        python = machine.interpreter.python
        yield violation(
            "{key} is {value}, but {packages} is not installed in {python}",
            install(python, *(f"{name}>={needed[name].oldest}" for name in missing)),
            key="evaluation.generation_metrics",
            value=plan.evaluation.generation_metrics,
            packages=", ".join(missing),
            python=python,
        )
