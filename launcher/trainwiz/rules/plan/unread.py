"""Settings that are in a plan and that nothing reads, because of what the rest of the plan says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainwiz import strategies, tasks
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.message import Message, say
from trainwiz.plan import Plan, defaults
from trainwiz.rules.registry import rule
from trainwiz.tasks.preference_losses import LOSSES
from trainwiz.vocabulary import EMBEDDED, spelled


@dataclass(frozen=True, kw_only=True)
class _Unread:
    """Keys that are read only in some plans."""

    keys: tuple[str, ...]
    """The keys; each has a constant default."""
    when: Callable[[Plan], bool]
    """Whether nothing reads them."""
    why: Message
    """What in the plan makes it so."""
    decided: tuple[tuple[str, object], ...] = ()
    """Keys without a constant default, and the values that `decide` gives them then."""


def _has_no_tokenizer(plan: Plan) -> bool:
    task = tasks.of(plan)
    made = plan.model.from_scratch and task.shape(plan.model.name) is not None
    return not task.from_hub or (made and (plan.model.name == "tiny" or plan.data.train == EMBEDDED))


_ROWS = (
    _Unread(
        keys=("evaluation.best_mode",),
        when=lambda plan: plan.evaluation.best_metric is None,
        why=say("evaluation.best_metric is empty"),
    ),
    _Unread(
        keys=("evaluation.generated_answers", "evaluation.max_new_tokens"),
        when=lambda plan: plan.evaluation.generation_metrics is None,
        why=say("evaluation.generation_metrics is empty"),
    ),
    _Unread(
        keys=("tracking.project", "tracking.run_name", "tracking.tags"),
        when=lambda plan: plan.tracking.log_with == "none",
        why=say("tracking.log_with is none"),
    ),
    _Unread(
        keys=("model.push_public",),
        when=lambda plan: plan.model.push_to_hub is None,
        why=say("model.push_to_hub is empty"),
    ),
    _Unread(
        keys=("data.weigh_by",),
        when=lambda plan: plan.data.source_weights is None,
        why=say("data.source_weights is empty"),
    ),
    _Unread(
        keys=("preference.loss", "preference.beta"),
        when=lambda plan: not tasks.of(plan).compares,
        why=say("the task compares no answers"),
    ),
    _Unread(
        keys=("preference.gamma",),
        when=lambda plan: not (tasks.of(plan).compares and LOSSES[plan.preference.loss].has_margin),
        why=say("only the loss simpo has a margin"),
    ),
    _Unread(
        keys=("preference.desirable_weight", "preference.undesirable_weight"),
        when=lambda plan: not tasks.of(plan).compares or LOSSES[plan.preference.loss].two_answers,
        why=say("only the loss kto weighs single answers"),
    ),
    _Unread(
        keys=("data.image_size", "data.augmentation", "data.image_column"),
        when=lambda plan: "pictures" not in tasks.of(plan).samples and not tasks.of(plan).own_code,
        why=say("the task reads no images"),
    ),
    _Unread(
        keys=("batch.sequence_length",),
        when=lambda plan: "pictures" in tasks.of(plan).samples,
        why=say("the samples are images"),
        decided=(("batch.sequence_length", 256),),
    ),
    _Unread(
        keys=("data.chat_template",),
        when=lambda plan: not tasks.of(plan).chats,
        why=say("the task has no conversations"),
    ),
    _Unread(
        keys=("data.special_tokens", "data.added_tokens"),
        when=_has_no_tokenizer,
        why=say("the model has no tokenizer"),
    ),
    _Unread(
        keys=("data.min_tokens", "data.max_tokens"),
        when=lambda plan: not tasks.of(plan).from_hub,
        why=say("the task reads no tokens"),
    ),
    _Unread(
        keys=("data.min_tokens", "data.max_tokens"),
        when=lambda plan: tasks.of(plan).from_hub and not tasks.of(plan).stores_tokens,
        why=say("texts with labels are not filtered by length"),
    ),
    _Unread(
        keys=("data.cache_dir",),
        when=lambda plan: not tasks.of(plan).stores_tokens and not tasks.of(plan).own_code,
        why=say("the task stores no tokens"),
    ),
    _Unread(
        keys=("data.text_column",),
        when=lambda plan: not tasks.of(plan).text_column and not tasks.of(plan).own_code,
        why=say("the task reads no column of texts"),
    ),
    _Unread(
        keys=("data.label_column",),
        when=lambda plan: not tasks.of(plan).labeled and not tasks.of(plan).own_code,
        why=say("the task reads no column of labels"),
    ),
    _Unread(
        keys=("strategy.nvme_path",),
        when=lambda plan: "nvme" not in (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device),
        why=say("nothing is offloaded to nvme"),
    ),
    _Unread(
        keys=("machine.main_process_ip",),
        when=lambda plan: plan.machine.num_machines == 1,
        why=say("a single machine has no other to meet"),
    ),
    _Unread(
        keys=("model.output_dtype",),
        when=lambda plan: not tasks.of(plan).from_hub,
        why=say("only text models are saved in another dtype"),
    ),
    _Unread(
        keys=("strategy.sync_each_batch",),
        when=lambda plan: not strategies.of(plan).uses_fsdp,
        why=say("only fsdp keeps whole gradients between micro-batches"),
    ),
    _Unread(
        keys=("data.packing", "data.train_on"),
        when=lambda plan: not tasks.of(plan).packs,
        why=say("only the tasks causal_lm and sft have a loss over tokens"),
        decided=(("data.packing", False),),
    ),
    _Unread(
        keys=("model.loss_chunk",),
        when=lambda plan: not tasks.of(plan).generative,
        why=say("only language models have logits for each token"),
    ),
)


@rule("TW560", level=Level.WARNING, field="task")
def settings_are_read(plan: Plan) -> Violations:
    """A setting should be one that the plan makes use of.

    Without it: the setting does nothing, and nobody says so: the training is not the one that the plan describes.
    Why: some keys belong to others: those of a tracker to tracking.log_with, those of evaluations to data.eval, those
    of images and of preferences to their tasks.
    Instead: set the key that it belongs to, or remove it from the plan.
    Source: the generated scripts, whose Config has no such field then
    """
    for row in _ROWS:
        usual = {**defaults(), **dict(row.decided)}
        for key in row.keys:
            if plan.get(key) != usual[key] and row.when(plan):
                yield violation(
                    "{key} is {value}, but nothing reads it: {why}",
                    remedy(
                        "remove {key} from the plan, or change what keeps it from being read",
                        {key: usual[key]},
                        key=key,
                    ),
                    key=key,
                    value=spelled(plan.get(key)),
                    why=row.why,
                    where=key,
                )


@rule("TW561", level=Level.ERROR, field="data.min_tokens")
def lengths_leave_samples(plan: Plan) -> Violations:
    """data.min_tokens must not be greater than data.max_tokens.

    Without it: task.py drops every sample and stops: there is nothing to train on.
    Why: no sample is at least as long as the one and at most as long as the other.
    Instead: set data.min_tokens to at most data.max_tokens; a max_tokens of 0 means no limit.
    Source: the generated packing.py
    """
    least, most = plan.data.min_tokens, plan.data.max_tokens
    if most and least > most:
        yield violation(
            "data.min_tokens is {least}, but data.max_tokens is {most}: every sample would be dropped",
            remedy("set data.min_tokens to at most {most}", {"data.min_tokens": most}, most=most),
            least=least,
            most=most,
        )


@rule("TW562", level=Level.ERROR, field="optimizer.weight_decay")
def weight_decay_shrinks(plan: Plan) -> Violations:
    """learning_rate × weight_decay must be less than 1.

    Without it: each update takes all of a weight away, or more, so that its sign turns: the loss is NaN, or the model
    forgets what it had learned.
    Why: an update multiplies a weight by 1 - learning_rate × weight_decay.
    Instead: 0.01 to 0.1 is usual.
    Source: https://arxiv.org/abs/1711.05101, algorithm 2
    """
    rate, decay = plan.optimizer.learning_rate, plan.optimizer.weight_decay
    if rate * decay >= 1:
        yield violation(
            "optimizer.weight_decay {decay:g} × learning_rate {rate:g} is {product:g}: an update multiplies weights by "
            "{factor:g}",
            remedy("set optimizer.weight_decay to 0.1", {"optimizer.weight_decay": 0.1}),
            decay=decay,
            rate=rate,
            product=rate * decay,
            factor=1 - rate * decay,
        )
