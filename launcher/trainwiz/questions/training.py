"""The questions on the training itself: schedule, optimizer, evaluation, checkpoints, tracking, supervision."""

from __future__ import annotations

from trainwiz import optimizers
from trainwiz.message import say
from trainwiz.questions.basic import packs_rows
from trainwiz.questions.table import YES_NO, Choice, Question, Values


def several_machines(values: Values) -> bool:
    """Whether more than one machine trains."""
    return int(values.get("machine.num_machines") or 1) > 1


def _one_machine(values: Values) -> bool:
    return not several_machines(values)


def _evaluates(values: Values) -> bool:
    return values.get("data.eval") is not None


def _chooses(values: Values) -> bool:
    return _evaluates(values) and values.get("evaluation.best_metric") is not None


def _evaluates_writing(values: Values) -> bool:
    return _evaluates(values) and packs_rows(values)


def _writes(values: Values) -> bool:
    return _evaluates_writing(values) and values.get("evaluation.generation_metrics") is not None


def _tracks(values: Values) -> bool:
    return bool(values.get("tracking.log_with", "none") != "none")


def _falls(values: Values) -> bool:
    return values.get("schedule.lr_scheduler_type") != "constant"


def _stays(values: Values) -> bool:
    return values.get("schedule.lr_scheduler_type") == "wsd"


def _is_polynomial(values: Values) -> bool:
    return values.get("schedule.lr_scheduler_type") == "polynomial"


def never(_: Values) -> bool:
    """For keys that a basic question sets together with its own."""
    return False


TRAINING: tuple[Question, ...] = (
    Question(
        key="schedule.train_strategy",
        prompt=say("Unit of the training length"),
        when=never,
        choices=(
            Choice(value="steps", label=say("optimizer updates")),
            Choice(value="epochs", label=say("passes over the data")),
        ),
        help="How the training length is counted: optimizer updates (schedule.n_steps) or passes over the data "
        "(schedule.n_epochs).",
    ),
    Question(
        key="schedule.n_epochs",
        prompt=say("Epochs"),
        when=never,
        help="Passes over the training data, if schedule.train_strategy is epochs.",
    ),
    Question(
        key="schedule.n_warmup_steps",
        prompt=say("Warm-up in updates"),
        help="Updates over which the learning rate rises from zero. Adam's first steps are noisy; without warm-up a "
        "high learning rate can ruin the weights at the start. Must be shorter than the training.",
    ),
    Question(
        key="schedule.warmup_ratio",
        prompt=say("Warm-up as a share of all updates (0: n_warmup_steps counts)"),
        help="0.03 warms up in the first 3 % of the updates, however many they are. It applies where "
        "schedule.n_warmup_steps is 0.",
    ),
    Question(
        key="schedule.lr_scheduler_type",
        prompt=say("Learning rate after warm-up"),
        choices=(
            Choice(value="cosine", label=say("falls along a cosine curve; common for pretraining")),
            Choice(value="linear", label=say("falls in a straight line; common for fine-tuning")),
            Choice(value="polynomial", label=say("falls as a power of the remaining share; polynomial_power")),
            Choice(
                value="wsd", label=say("stays the same, and falls in the last updates (WSD); decay_ratio, decay_type")
            ),
            Choice(value="constant", label=say("stays the same")),
        ),
        help="How the learning rate changes after warm-up, counted in updates. All but constant reach their floor "
        "(schedule.min_lr_ratio, usually zero) exactly at the end of training.",
    ),
    Question(
        key="schedule.min_lr_ratio",
        prompt=say("Floor of the learning rate, as a share of the highest"),
        when=_falls,
        help="The rate falls to this share of optimizer.learning_rate and no further: 0.1 is common for pretraining "
        "with cosine, 0 lets it reach zero.",
    ),
    Question(
        key="schedule.decay_ratio",
        prompt=say("Share of all updates in which the rate falls (wsd)"),
        when=_stays,
        help="Under wsd the rate stays at its peak until this share of the updates is left. 0.1 to 0.2 is common. A "
        "checkpoint from before the fall can be trained on for longer, which no other schedule allows.",
    ),
    Question(
        key="schedule.decay_type",
        prompt=say("Course of the fall (wsd)"),
        when=_stays,
        choices=(
            Choice(value="1-sqrt", label=say("fast at first, then ever slower")),
            Choice(value="linear", label=say("a straight line")),
            Choice(value="cosine", label=say("a cosine curve")),
        ),
        help="How the rate falls in the last updates under wsd. 1-sqrt was the best of several in a published "
        "comparison, by a small margin.",
    ),
    Question(
        key="schedule.polynomial_power",
        prompt=say("Power of the polynomial"),
        when=_is_polynomial,
        help="With polynomial, the rate is the remaining share of the training, raised to this power: 1 is a straight "
        "line, 2 falls fast at first.",
    ),
    Question(
        key="optimizer.name",
        prompt=say("Optimizer"),
        choices=tuple(Choice(value=row.name, label=row.summary) for row in optimizers.every()),
        help="How gradients become an update. adamw for transformers; sgd for vision models and regressions. lion, "
        "adafactor and the 8-bit optimizers keep less state; muon needs fewer updates for language models. muon, "
        "adafactor and the 8-bit optimizers need whole parameters: single and ddp.",
    ),
    Question(
        key="optimizer.learning_rate",
        prompt=say("Learning rate"),
        help="The highest learning rate, reached after warm-up. Larger models need smaller rates; to continue from "
        "trained weights, use a tenth. Too high: the loss jumps or becomes NaN. Too low: the loss hardly falls.",
    ),
    Question(
        key="optimizer.weight_decay",
        prompt=say("Weight decay"),
        help="Pulls weights towards zero at every update; 0.1 is common for pretraining, 0 turns it off.",
    ),
    Question(
        key="optimizer.gradient_clipping",
        prompt=say("Gradient clipping (0: off)"),
        help="Scales the gradient of the whole real batch down if its norm exceeds this value. 1.0 protects a run from "
        "single bad batches and costs one norm computation per update.",
    ),
    Question(
        key="optimizer.beta1",
        prompt=say("beta1, or momentum (null: the optimizer's own)"),
        help="How slowly the mean of gradients forgets: 0.9 for adamw, lion and sgd (its momentum), 0.95 for muon.",
    ),
    Question(
        key="optimizer.beta2",
        prompt=say("beta2 (null: the optimizer's own)"),
        help="How slowly the mean of squared gradients forgets: 0.95 for adamw (0.999 is usual for small batches), "
        "0.99 for lion.",
    ),
    Question(
        key="optimizer.epsilon",
        prompt=say("epsilon (null: the optimizer's own)"),
        help="What is added to the denominator of a step: 1e-8 for adamw. Larger values calm down weights with tiny "
        "gradients.",
    ),
    Question(
        key="optimizer.ema_decay",
        prompt=say("Average of the weights: its decay (0: off)"),
        help="An exponential moving average of the trained weights, of about the last 1 / (1 - decay) updates: 0.999 "
        "is common for thousands of updates. The average is evaluated, and becomes the model; checkpoints hold both. "
        "It costs 4 bytes per parameter. For single, ddp and fsdp.",
    ),
    Question(
        key="optimizer.rates",
        prompt=say("Learning rates of some parameters (head=10,embed=0.1; null: none)"),
        help="Factors of the learning rate for parameters with these words in their names, separated by commas; * "
        "stands for anything, and a later one overrides an earlier one. A new head often learns with 10, embeddings "
        "with 0.1. A word that is in no name ends the training at its start.",
    ),
    Question(
        key="optimizer.decays",
        prompt=say("Weight decays of some parameters (embed=0; null: none)"),
        help="Weight decays for parameters with these words in their names, in the same form as optimizer.rates. "
        "Without them, matrices and embeddings decay by optimizer.weight_decay, biases and norms not at all.",
    ),
    Question(
        key="evaluation.evaluation_steps",
        prompt=say("Evaluate every N updates (0: after each epoch)"),
        when=_evaluates,
        help="How often the model is evaluated on data.eval, and always at the end. Training waits meanwhile. Evaluate "
        "often enough that the best checkpoint is close to the best moment.",
    ),
    Question(
        key="evaluation.best_metric",
        prompt=say("Metric of the best checkpoint (null: keep none)"),
        when=_evaluates,
        help="With a metric (eval_loss; eval_accuracy or eval_f1 of classifiers; eval_mae or eval_r2 of "
        "text_regression; your own of custom), each evaluation that is better than all before is followed by a "
        "checkpoint, which is kept whatever checkpoints_total_limit says, and whose weights become the model at the "
        "end. null takes the last weights.",
    ),
    Question(
        key="evaluation.best_mode",
        prompt=say("Is the metric better when it is small or large?"),
        when=_chooses,
        choices=(
            Choice(value="auto", label=say("known by the metric's name")),
            Choice(value="min", label=say("small is better: losses and errors")),
            Choice(value="max", label=say("large is better: accuracy, F1, R²")),
        ),
        help="The direction of the metrics that trainwiz writes is known; only those of your own code (custom) need "
        "min or max.",
    ),
    Question(
        key="evaluation.patience",
        prompt=say("Evaluations without improvement that end the training (0: off)"),
        when=_chooses,
        help="Early stopping: the training ends once evaluation.best_metric has not improved in so many evaluations "
        "in a row. The count is part of each checkpoint, so a resumed training ends where it would have ended.",
    ),
    Question(
        key="evaluation.gather_outputs",
        prompt=say("Compute metrics from the outputs for all samples"),
        when=_evaluates,
        choices=YES_NO,
        help="Some metrics are not sums over samples: eval_auc of classifiers, eval_pearson and eval_spearman of "
        "text_regression, and what you write for custom. true gathers the outputs of all ranks in the order of the "
        "data, each sample once, and computes all metrics from them; they must fit in the memory of one rank.",
    ),
    Question(
        key="evaluation.generation_metrics",
        prompt=say("Metrics of what the model writes: exact_match, bleu, rouge (null: none)"),
        when=_evaluates_writing,
        help="Each evaluation then lets the model continue prompts of data.eval, always with the most likely token: "
        "exact_match is the share of answers that are the same, bleu is sacrebleu's from 0 to 100, rouge the "
        "F-measures of rouge-score from 0 to 1. Chinese is compared by characters. best_metric may be one of them: "
        "eval_exact_match, eval_bleu, eval_rouge_1, eval_rouge_2, eval_rouge_l.",
    ),
    Question(
        key="evaluation.generated_answers",
        prompt=say("Answers that the model writes in each evaluation (0: all)"),
        when=_writes,
        help="The first prompts of the evaluation data. Each token of an answer is a forward pass, so this decides how "
        "long an evaluation takes.",
    ),
    Question(
        key="evaluation.max_new_tokens",
        prompt=say("Tokens of such an answer at most"),
        when=_writes,
        help="An answer ends with the model's end token, or here. Longer answers of the data cannot be matched.",
    ),
    Question(
        key="checkpoint.checkpointing_steps",
        prompt=say("Save a checkpoint every N updates (0: only at the end)"),
        help="The interval limits how much work a failed run loses. A checkpoint takes about 12 bytes per parameter on "
        "disk, and training stops while it is written.",
    ),
    Question(
        key="checkpoint.checkpoints_total_limit",
        prompt=say("Checkpoints to keep (null: all)"),
        help="Older complete checkpoints beyond this number are deleted; the newest one is never deleted. 2 or more.",
    ),
    Question(
        key="checkpoint.background",
        prompt=say("Finish checkpoints in the background"),
        choices=YES_NO,
        help="With one rank, DDP and FSDP, training waits only until its state is copied into host memory, which takes "
        "as much of it as the state; with DeepSpeed and Colossal-AI until it is written to the page cache. All else "
        "runs in the background, one checkpoint at a time. A crash before it finishes goes back to the previous "
        "checkpoint.",
    ),
    Question(
        key="checkpoint.on_failed_save",
        prompt=say("If a checkpoint cannot be written"),
        choices=(
            Choice(value="continue", label=say("report it and continue training; the next checkpoint is tried again")),
            Choice(value="stop", label=say("end the training with an error")),
        ),
        help="What to do if the disk is full or fails. Earlier checkpoints stay unchanged in both cases. If the latest "
        "training state could not be saved, the training ends with an error even with continue.",
    ),
    Question(
        key="tracking.log_with",
        prompt=say("Tracker"),
        choices=(
            Choice(value="none", label=say("metrics.jsonl only")),
            Choice(value="tensorboard", label=say("also write files for TensorBoard")),
            Choice(value="wandb", label=say("Weights & Biases; needs the wandb package and an account")),
            Choice(value="mlflow", label=say("MLflow; needs the mlflow package, and MLFLOW_TRACKING_URI for a server")),
            Choice(value="swanlab", label=say("SwanLab; needs the swanlab package and an account")),
            Choice(value="trackio", label=say("Trackio: a local dashboard; needs the trackio package")),
        ),
        help="metrics.jsonl is always written. A tracker shows the same values elsewhere, from rank 0 only.",
    ),
    Question(
        key="tracking.project",
        prompt=say("Project of the tracker"),
        when=_tracks,
        help="Under which project (of MLflow: experiment; of TensorBoard: folder) the tracker files the run.",
    ),
    Question(
        key="tracking.run_name",
        prompt=say("Name of the run (null: the tracker chooses)"),
        when=_tracks,
        help="What the tracker calls the run. Of TensorBoard: a suffix of its files.",
    ),
    Question(
        key="tracking.tags",
        prompt=say("Tags of the run, with commas between (null: none)"),
        when=_tracks,
        help="Words to find the run by. Trackio has no tags; there they are a setting of the run.",
    ),
    Question(
        key="tracking.logging_steps",
        prompt=say("Log every N updates"),
        help="Values are read from the device only at these updates; in between, the host does not wait for the GPU.",
    ),
    Question(
        key="supervision.on_hang",
        prompt=say("If the training makes no more progress"),
        choices=(
            Choice(value="wait", label=say("report where each rank is, and wait")),
            Choice(value="stop", label=say("end the run with exit code 124 once nothing moves any more")),
        ),
        help="A hung run costs as much as a working one until someone notices. wait only reports where each rank is; "
        "stop also ends the run, which lets a scheduler or max_restarts start it again. --on-hang overrides this for "
        "one launch.",
    ),
    Question(
        key="supervision.hang_limit",
        prompt=say("Seconds of silence that count as a hang (0: automatic)"),
        help="0 derives the limit from the run: five times its longest silence, at least 300 s. Another number "
        "replaces the 300: raise it if an evaluation or a checkpoint takes longer than any step before it.",
    ),
    Question(
        key="supervision.max_restarts",
        prompt=say("Restarts after a temporary failure"),
        when=_one_machine,
        help="How many times launch automatically restarts from the newest checkpoint after a failure that may be "
        "temporary: a killed rank, a lost connection, a hang that was stopped. A failure that would happen again is "
        "never retried. 0 turns restarts off; only for one machine.",
    ),
)
