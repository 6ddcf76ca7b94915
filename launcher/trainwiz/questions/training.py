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
        prompt=say("Warm-up as a share of all updates (0: use n_warmup_steps)"),
        help="0.03 warms up during the first 3 % of the updates, whatever their number. It applies if "
        "schedule.n_warmup_steps is 0.",
    ),
    Question(
        key="schedule.lr_scheduler_type",
        prompt=say("Learning rate after warm-up"),
        choices=(
            Choice(value="cosine", label=say("falls along a cosine curve; common for pretraining")),
            Choice(value="linear", label=say("falls linearly; common for fine-tuning")),
            Choice(value="polynomial", label=say("falls as a power of the remaining share; polynomial_power")),
            Choice(
                value="wsd", label=say("stays constant, and falls in the last updates (WSD); decay_ratio, decay_type")
            ),
            Choice(value="constant", label=say("stays constant")),
        ),
        help="How the learning rate changes after warm-up, counted in updates. All but constant reach their "
        "minimum (schedule.min_lr_ratio, usually zero) exactly at the end of training.",
    ),
    Question(
        key="schedule.min_lr_ratio",
        prompt=say("Minimum learning rate, as a share of the highest"),
        when=_falls,
        help="The learning rate falls to this share of optimizer.learning_rate and no further: 0.1 is common for "
        "pretraining with cosine, 0 lets it reach zero.",
    ),
    Question(
        key="schedule.decay_ratio",
        prompt=say("Share of all updates in which the learning rate falls (wsd)"),
        when=_stays,
        help="Under wsd the learning rate stays at its peak until this share of the updates is left. 0.1 to 0.2 "
        "is common. A checkpoint from before the decay can be trained for longer, which no other schedule "
        "allows.",
    ),
    Question(
        key="schedule.decay_type",
        prompt=say("Shape of the decay (wsd)"),
        when=_stays,
        choices=(
            Choice(value="1-sqrt", label=say("fast at first, then ever slower")),
            Choice(value="linear", label=say("a straight line")),
            Choice(value="cosine", label=say("a cosine curve")),
        ),
        help="How the learning rate falls in the last updates under wsd. 1-sqrt was the best of several in a "
        "published comparison, by a small margin.",
    ),
    Question(
        key="schedule.polynomial_power",
        prompt=say("Power of the polynomial"),
        when=_is_polynomial,
        help="With polynomial, the learning rate is the remaining share of the training raised to this power: 1 "
        "is a straight line, 2 falls fast at first.",
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
        help="Decay rate of the mean of gradients: 0.9 for adamw, lion and sgd (its momentum), 0.95 for muon.",
    ),
    Question(
        key="optimizer.beta2",
        prompt=say("beta2 (null: the optimizer's own)"),
        help="Decay rate of the mean of squared gradients: 0.95 for adamw (0.999 is usual for small batches), "
        "0.99 for lion.",
    ),
    Question(
        key="optimizer.epsilon",
        prompt=say("epsilon (null: the optimizer's own)"),
        help="Added to the denominator of each step: 1e-8 for adamw. Larger values stabilize weights with tiny "
        "gradients.",
    ),
    Question(
        key="optimizer.ema_decay",
        prompt=say("Average of the weights: its decay (0: off)"),
        help="An exponential moving average of the trained weights, over about the last 1 / (1 - decay) updates: "
        "0.999 is common for thousands of updates. The average is evaluated, and becomes the model; "
        "checkpoints contain both. It costs 4 bytes per parameter. For single, ddp and fsdp.",
    ),
    Question(
        key="optimizer.rates",
        prompt=say("Learning rates of some parameters (head=10,embed=0.1; null: none)"),
        help="Factors of the learning rate for parameters with these words in their names, separated by commas; * "
        "stands for anything, and later entries override earlier ones. A new head often learns with 10, "
        "embeddings with 0.1. If a word matches no name, the training ends at its start.",
    ),
    Question(
        key="optimizer.decays",
        prompt=say("Weight decay of some parameters (embed=0; null: none)"),
        help="Weight decay of parameters with these words in their names, in the same form as optimizer.rates. By "
        "default, matrices and embeddings decay by optimizer.weight_decay, biases and norms not at all.",
    ),
    Question(
        key="evaluation.evaluation_steps",
        prompt=say("Evaluate every N updates (0: after each epoch)"),
        when=_evaluates,
        help="How often the model is evaluated on data.eval; it is always evaluated at the end. Training waits "
        "meanwhile. Evaluate often enough that the best checkpoint is close to the best moment.",
    ),
    Question(
        key="evaluation.best_metric",
        prompt=say("Metric of the best checkpoint (null: keep none)"),
        when=_evaluates,
        help="With a metric (eval_loss; eval_accuracy or eval_f1 of classifiers; eval_mae or eval_r2 of "
        "text_regression; your own in custom), a checkpoint is saved after each evaluation that is better "
        "than all before. It is kept regardless of checkpoints_total_limit, and its weights become the model "
        "at the end. null uses the last weights.",
    ),
    Question(
        key="evaluation.best_mode",
        prompt=say("Is a lower or a higher value of the metric better?"),
        when=_chooses,
        choices=(
            Choice(value="auto", label=say("known by the metric's name")),
            Choice(value="min", label=say("lower is better: losses and errors")),
            Choice(value="max", label=say("higher is better: accuracy, F1, R²")),
        ),
        help="The direction of the metrics that trainwiz writes is known; only metrics in your own code (custom) "
        "need min or max.",
    ),
    Question(
        key="evaluation.patience",
        prompt=say("Stop after this many evaluations without improvement (0: off)"),
        when=_chooses,
        help="Early stopping: training ends once evaluation.best_metric has not improved in this many evaluations "
        "in a row. The count is part of each checkpoint, so a resumed training ends where it would have "
        "ended.",
    ),
    Question(
        key="evaluation.gather_outputs",
        prompt=say("Compute metrics from the outputs for all samples"),
        when=_evaluates,
        choices=YES_NO,
        help="Some metrics are not sums over samples: eval_auc of classifiers, eval_pearson and eval_spearman of "
        "text_regression, and the ones that you write for custom. true gathers the outputs of all ranks in "
        "the order of the data, each sample once, and computes all metrics from them; they must fit in the "
        "memory of one rank.",
    ),
    Question(
        key="evaluation.generation_metrics",
        prompt=say("Metrics of generated answers: exact_match, bleu, rouge (null: none)"),
        when=_evaluates_writing,
        help="In each evaluation, the model then continues prompts of data.eval, always with the most likely "
        "token: exact_match is the share of answers that are the same, bleu is sacrebleu's from 0 to 100, "
        "rouge the F-measures of rouge-score from 0 to 1. Chinese is compared by characters. best_metric may "
        "be one of them: eval_exact_match, eval_bleu, eval_rouge_1, eval_rouge_2, eval_rouge_l.",
    ),
    Question(
        key="evaluation.generated_answers",
        prompt=say("Answers that the model generates in each evaluation (0: all)"),
        when=_writes,
        help="The first prompts of the evaluation data are used. Each token of an answer is a forward pass, so "
        "this determines how long an evaluation takes.",
    ),
    Question(
        key="evaluation.max_new_tokens",
        prompt=say("Maximum number of tokens in such an answer"),
        when=_writes,
        help="An answer ends at the model's end token, or at this length. Longer answers in the data cannot be "
        "matched.",
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
        help="Older complete checkpoints beyond this number are deleted; the newest one is never deleted. At least 2.",
    ),
    Question(
        key="checkpoint.background",
        prompt=say("Write checkpoints in the background"),
        choices=YES_NO,
        help="With one rank, DDP and FSDP, training waits only until its state is copied into host memory, which "
        "needs as much memory as the state; with DeepSpeed and Colossal-AI, until it is written to the page "
        "cache. Everything else runs in the background, one checkpoint at a time. After a crash before it "
        "finishes, training resumes from the previous checkpoint.",
    ),
    Question(
        key="checkpoint.on_failed_save",
        prompt=say("If a checkpoint cannot be written"),
        choices=(
            Choice(value="continue", label=say("report it and continue training; try again at the next checkpoint")),
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
        help="The tracker's project for the run (MLflow: experiment; TensorBoard: folder).",
    ),
    Question(
        key="tracking.run_name",
        prompt=say("Name of the run (null: the tracker chooses)"),
        when=_tracks,
        help="The tracker's name for the run. With TensorBoard: a suffix of its files.",
    ),
    Question(
        key="tracking.tags",
        prompt=say("Tags of the run, separated by commas (null: none)"),
        when=_tracks,
        help="Words for finding the run. Trackio has no tags, so there they become a setting of the run.",
    ),
    Question(
        key="tracking.logging_steps",
        prompt=say("Log every N updates"),
        help="Values are read from the device only at these updates; in between, the host does not wait for the GPU.",
    ),
    Question(
        key="supervision.on_hang",
        prompt=say("If the training stops making progress"),
        choices=(
            Choice(value="wait", label=say("report where each rank is, and wait")),
            Choice(value="stop", label=say("end the run with exit code 124 if there is no progress at all")),
        ),
        help="A hung run costs as much as a working one until someone notices. wait only reports where each rank "
        "is; stop also ends the run, so that a scheduler or max_restarts can restart it. --on-hang overrides "
        "this for one launch.",
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
