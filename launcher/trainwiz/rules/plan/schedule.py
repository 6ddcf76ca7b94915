"""How long the training is, and what happens when; all counted in optimizer updates."""

from __future__ import annotations

import math

from trainwiz import optimizers
from trainwiz.finding import Level, Violation, Violations, remedy, setting, violation
from trainwiz.plan import Plan, defaults
from trainwiz.project import Project
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import total_updates

HOT = 0.01
"""AdamW moves each weight by about the learning rate per update; GPT-3 was trained with 6e-5 to 6e-4."""

_USED_BY = {
    "schedule.min_lr_ratio": ("cosine", "linear", "polynomial", "wsd"),
    "schedule.decay_ratio": ("wsd",),
    "schedule.decay_type": ("wsd",),
    "schedule.polynomial_power": ("polynomial",),
}
"""The schedules that use a setting."""


@rule("TW411", level=Level.ERROR, field="schedule.train_strategy")
def length_is_given(plan: Plan) -> Violations:
    """The plan must set n_steps if train_strategy is steps, or n_epochs if it is epochs.

    Without it: every rank imports torch, then stops with `n_steps 0, n_epochs 0: one of them says how long`.
    Why: the schedule, the progress bar and the checkpoints all count up to the last update.
    Instead: set the one that matches train_strategy.
    Source: seen with the generated train.py
    """
    strategy = plan.schedule.train_strategy
    if (plan.schedule.n_steps if strategy == "steps" else plan.schedule.n_epochs) is None:
        key = f"schedule.n_{strategy}"
        fix = remedy("set {key}", key=key)
        yield violation("schedule.train_strategy is {train_strategy}, but {key} is not set", fix, key=key, where=key)


@rule("TW412", level=Level.WARNING, field="schedule.train_strategy")
def length_is_given_once(plan: Plan) -> Violations:
    """Set either n_steps or n_epochs, not both.

    Without it: train_strategy decides which one applies; the other is ignored, and misleads whoever reads the plan.
    Why: in transformers' Trainer, max_steps silently overrides the epochs; many plans carry over this habit.
    Instead: leave the unused one empty.
    Source: https://huggingface.co/docs/transformers/main_classes/trainer (max_steps overrides num_train_epochs)
    """
    schedule = plan.schedule
    if schedule.n_steps is not None and schedule.n_epochs is not None:
        ignored = "schedule.n_epochs" if schedule.train_strategy == "steps" else "schedule.n_steps"
        yield violation(
            "both are set: schedule.n_steps {n_steps} and schedule.n_epochs {n_epochs}; {ignored} is ignored",
            remedy("leave {ignored} empty", {ignored: None}, ignored=ignored),
            ignored=ignored,
            where=ignored,
        )


@rule("TW413", level=Level.ERROR, field="schedule.n_warmup_steps")
def warmup_ends(plan: Plan, project: Project) -> Violations:
    """Warm-up must be shorter than the training.

    Without it: the learning rate reaches its target at the end, or never; the run looks fine but learns too little.
    Why: warm-up counts updates. A number from a run with fewer GPUs or a smaller batch is too large.
    Instead: use a few percent of the updates.
    Source: huggingface/accelerate issues 2926, 2142, 1382
    """
    warmup, total = plan.schedule.n_warmup_steps, total_updates(plan, project)
    if total is not None and 0 < total <= warmup:
        yield _too_long("schedule.n_warmup_steps", warmup, total, total // 20)


@rule("TW414", level=Level.WARNING, field="checkpoint.checkpointing_steps")
def checkpoints_come_before_the_end(plan: Plan, project: Project) -> Violations:
    """checkpointing_steps must not exceed the total number of updates.

    Without it: the only checkpoint is the one written at the end; any interruption loses the whole run.
    Why: checkpointing_steps counts updates, and the training has fewer.
    Instead: save often enough that you can afford to repeat the work in between. 0 means to save only at the end.
    Source: the generated train.py
    """
    every, total = plan.checkpoint.checkpointing_steps, total_updates(plan, project)
    if total is not None and every > total:
        yield _too_long("checkpoint.checkpointing_steps", every, total, max(1, total // 4))


@rule("TW415", level=Level.WARNING, field="tracking.logging_steps")
def logs_come_before_the_end(plan: Plan, project: Project) -> Violations:
    """logging_steps must not exceed the total number of updates.

    Without it: metrics.jsonl has only one line, the last one.
    Why: logging_steps counts updates, and the training has fewer.
    Instead: log every 1 to 10 updates; nothing is read from the device between log points.
    Source: the generated train.py
    """
    every, total = plan.tracking.logging_steps, total_updates(plan, project)
    if total is not None and every > total:
        yield _too_long("tracking.logging_steps", every, total, max(1, total // 10))


@rule("TW416", level=Level.HINT, field="optimizer.gradient_clipping")
def gradients_are_clipped(plan: Plan) -> Violations:
    """Gradients should be clipped.

    Without it: one bad batch can push the weights far off; the loss jumps and sometimes never recovers.
    Why: the gradient norms of language models are heavy-tailed. Almost every published run clips at norm 1.0.
    Instead: set 1.0. If you really want 0, it is written to ds_config.json as 0.0, because DeepSpeed 0.19 reads a
    missing value as 1.0.
    Source: https://arxiv.org/abs/2005.14165, appendix B; seen with DeepSpeed 0.19.8 and 0.16.5
    """
    if plan.optimizer.gradient_clipping == 0:
        yield violation(
            "optimizer.gradient_clipping is 0: gradients are not clipped",
            remedy(
                "set optimizer.gradient_clipping to 1.0, unless 0 is intended", {"optimizer.gradient_clipping": 1.0}
            ),
        )


@rule("TW417", level=Level.WARNING, field="optimizer.learning_rate")
def learning_rate_suits_adam(plan: Plan, project: Project) -> Violations:
    """The learning rate of AdamW should be below 0.01.

    Without it: the loss rises or becomes nan within the first updates.
    Why: AdamW divides by the size of the gradient, so each update moves each weight by about the learning rate.
    Rates like 0.1 are for SGD.
    Instead: use 1e-5 to 1e-4 for fine-tuning, 1e-4 to 1e-3 for training from scratch.
    Source: https://arxiv.org/abs/1412.6980, section 2.1 (bound on the step)
    """
    if any(name == "build_optimizers" for _, name, _ in project.own_functions):
        return  # which may make any other optimizer
    if optimizers.named(plan.optimizer.name).moves_by_rate and plan.optimizer.learning_rate >= HOT:
        yield violation(
            "optimizer.learning_rate is {learning_rate}; with {optimizer} each update moves every weight by about that "
            "much",
            remedy("set optimizer.learning_rate to 3e-4, or optimizer.name to sgd", {"optimizer.learning_rate": 3e-4}),
            optimizer=plan.optimizer.name,
        )


@rule("TW425", level=Level.WARNING, field="schedule.warmup_ratio")
def warmup_is_given_once(plan: Plan) -> Violations:
    """Set either warmup_ratio or n_warmup_steps, not both.

    Without it: n_warmup_steps applies and warmup_ratio is ignored, which misleads whoever reads the plan.
    Why: a number of updates and a share of all updates say the same thing twice.
    Instead: set n_warmup_steps to 0, so that the warm-up follows the length of the training.
    Source: the generated schedule.py
    """
    schedule = plan.schedule
    if schedule.warmup_ratio and schedule.n_warmup_steps:
        yield violation(
            "both are set: schedule.n_warmup_steps {n_warmup_steps} and schedule.warmup_ratio {warmup_ratio}, which is "
            "ignored",
            setting("schedule.n_warmup_steps", 0),
        )


@rule("TW426", level=Level.WARNING, field="schedule.lr_scheduler_type")
def schedule_uses_its_settings(plan: Plan, project: Project) -> Violations:
    """Each schedule setting must belong to the schedule's type.

    Without it: the setting is ignored, and the learning rate differs from what the plan seems to say.
    Why: decay_ratio and decay_type are for wsd, polynomial_power is for polynomial, and constant has no minimum. With a
    minimum of 1, no schedule lowers the rate. The last update of a warm-up has the whole rate, so under constant a
    warm-up of one update changes nothing.
    Instead: set lr_scheduler_type to the one that has this setting, or leave the setting at its default.
    Source: the generated schedule.py
    """
    kind, usual = plan.schedule.lr_scheduler_type, defaults()
    if plan.schedule.min_lr_ratio == 1 and kind in _USED_BY["schedule.min_lr_ratio"]:
        yield violation(
            "schedule.min_lr_ratio is 1, so schedule.lr_scheduler_type {lr_scheduler_type} never lowers the rate",
            remedy(
                "set schedule.min_lr_ratio to 0.1, or schedule.lr_scheduler_type to constant and min_lr_ratio to 0",
                {"schedule.min_lr_ratio": 0.1},
            ),
            where="schedule.min_lr_ratio",
        )
    yield from _warms_up_nothing(plan, project)
    for key, users in _USED_BY.items():
        if kind not in users and plan.get(key) != usual[key]:
            yield violation(
                "{key} is {value}, but lr_scheduler_type {lr_scheduler_type} does not use it",
                remedy(
                    "set schedule.lr_scheduler_type to {users}, or {key} to {usual}",
                    {key: usual[key]},
                    key=key,
                    usual=usual[key],
                    users=users[0],
                ),
                key=key,
                value=plan.get(key),
                where=key,
            )


def _warms_up_nothing(plan: Plan, project: Project) -> Violations:
    schedule = plan.schedule
    key = "schedule.n_warmup_steps" if schedule.n_warmup_steps else "schedule.warmup_ratio"
    warmup = schedule.n_warmup_steps or math.ceil(schedule.warmup_ratio * (total_updates(plan, project) or 0))
    if schedule.lr_scheduler_type == "constant" and warmup == 1:
        yield violation(
            "{key} is {value}, a warm-up of 1 update: every update has the whole learning rate",
            setting(key, 0),
            key=key,
            value=plan.get(key),
            where=key,
        )


@rule("TW427", level=Level.WARNING, field="schedule.decay_ratio")
def phases_fit_into_the_training(plan: Plan, project: Project) -> Violations:
    """Warm-up and decay of wsd must fit into the training.

    Without it: the learning rate starts to fall right after the warm-up, and in fewer updates than planned.
    Why: the warm-up and the decay together are longer than the training, so nothing is left for the stable phase.
    Instead: shorten one of them.
    Source: the generated schedule.py
    """
    schedule, total = plan.schedule, total_updates(plan, project)
    if schedule.lr_scheduler_type != "wsd" or not total:
        return
    warmup = schedule.n_warmup_steps or math.ceil(schedule.warmup_ratio * total)
    decay = math.ceil(schedule.decay_ratio * total)
    if 0 < total - warmup < decay:
        yield violation(
            "warm-up ({warmup} updates) and decay ({decay}) are longer than the training ({total})",
            remedy("lower schedule.decay_ratio, or shorten the warm-up"),
            warmup=warmup,
            decay=decay,
            total=total,
        )


def _too_long(key: str, value: int, total: int, better: int) -> Violation:
    return violation(
        "{key} is {value}, but the whole training has only {total} updates",
        setting(key, better),
        key=key,
        value=value,
        total=total,
    )
