"""The questions behind the gate, and the entries of those keys that a basic question settles together with others."""

from __future__ import annotations

from typing import get_args

from trainwiz import optimizers, strategies, tasks
from trainwiz import vocabulary as v
from trainwiz.message import say
from trainwiz.questions import forms
from trainwiz.questions.basic import names_data, reads_text, writes_text
from trainwiz.questions.table import Choice, Question, Values


def _several_machines(values: Values) -> bool:
    return int(values.get("machine.num_machines") or 1) > 1


def _one_machine(values: Values) -> bool:
    return not _several_machines(values)


def _deepspeed(values: Values) -> bool:
    return strategies.chosen(values.get("strategy.kind", "single"), None).uses_deepspeed


def _stage3(values: Values) -> bool:
    return _deepspeed(values) and values.get("strategy.zero_stage") == 3


def _nvme(values: Values) -> bool:
    return "nvme" in (values.get("strategy.offload_optimizer_device"), values.get("strategy.offload_param_device"))


def _fine_tunes(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).adapters


def _adapts(values: Values) -> bool:
    return _fine_tunes(values) and values.get("model.adapter", "none") != "none"


def _reads_columns(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).text_column


def _reads_labels(values: Values) -> bool:
    return _reads_columns(values) and tasks.named(values.get("task", v.USUAL_TASK)).labelled


def _evaluates(values: Values) -> bool:
    return values.get("data.eval") is not None


def _chooses(values: Values) -> bool:
    return _evaluates(values) and values.get("evaluation.best_metric") is not None


def _tracks(values: Values) -> bool:
    return bool(values.get("tracking.log_with", "none") != "none")


def _falls(values: Values) -> bool:
    return values.get("schedule.lr_scheduler_type") != "constant"


def _stays(values: Values) -> bool:
    return values.get("schedule.lr_scheduler_type") == "wsd"


def _is_polynomial(values: Values) -> bool:
    return values.get("schedule.lr_scheduler_type") == "polynomial"


def _accelerate(values: Values) -> bool:
    return values.get("engine") != "colossalai"


def _shards_with_torch(values: Values) -> bool:
    return strategies.chosen(values.get("strategy.kind", "single"), None).uses_fsdp


def _never(_: Values) -> bool:
    # The basic questions ask it together with its neighbours; here it only has its entry.
    return False


YES_NO = (Choice(value="true", label=say("yes")), Choice(value="false", label=say("no")))
_OFFLOAD = (
    Choice(value="none", label=say("stays on the device")),
    Choice(value="cpu", label=say("host memory")),
    Choice(value="nvme", label=say("a disk; only at stage 3, needs libaio and a path")),
)

ADVANCED: tuple[Question, ...] = (
    Question(
        key="engine",
        prompt=say("Engine"),
        when=_never,
        choices=tuple(Choice(value=name, label=say("{name}", name=name)) for name in get_args(v.Engine)),
        help="The library behind the training loop, determined by strategy.kind: accelerate runs DDP, DeepSpeed and "
        "FSDP with one script, colossalai runs the plugins of Colossal-AI's Booster.",
    ),
    Question(
        key="seed",
        prompt=say("Seed"),
        help="Determines the initial weights, the data order and dropout. The same seed and plan give the same "
        "training curve with any number of ranks. From 0 to 4294967295.",
    ),
    Question(
        key="model.parameters",
        prompt=say("Parameters of the model, in billions"),
        when=_never,
        reader=forms.read_parameters,
        shower=forms.show_parameters,
        help="How many parameters the model has: 7B, 350M, or billions (0.5). It determines memory, and with it the "
        "strategy, the length of samples and the micro-batch. It is found in the model's files, in its config.json, on "
        "the hub, in a table of well-known models, or in the model's name; this number is used where none of them says "
        "it, and it is checked against them.",
    ),
    Question(
        key="strategy.sync_each_batch",
        prompt=say("Reduce gradients in each micro-batch"),
        when=_shards_with_torch,
        choices=YES_NO,
        help="Under fsdp with accumulation, gradients can be reduced after each micro-batch, so that each rank keeps "
        "only its part of them, or once per update, which communicates less and keeps whole gradients in fp32 on each "
        "rank: 4 bytes per parameter. The result is the same. Reduce in each micro-batch if memory runs out.",
    ),
    Question(
        key="model.from_scratch",
        prompt=say("Start from random weights"),
        when=reads_text,
        choices=YES_NO,
        help="true creates random weights with the model's architecture; false loads its trained weights (for a "
        "preset, from the hub) and continues from them. Continuing needs a learning rate about ten times smaller.",
    ),
    Question(
        key="model.compile",
        prompt=say("Compile the model"),
        when=_accelerate,
        choices=YES_NO,
        help="true lets torch.compile generate kernels for each layer of the model: the same values up to rounding, "
        "for long runs on GPUs. It costs a minute or more at each start, and needs a C++ compiler. If sample lengths "
        "keep changing, layers are compiled once more, for any length.",
    ),
    Question(
        key="model.activation_checkpointing",
        prompt=say("Activation checkpointing"),
        choices=(
            Choice(value="none", label=say("keep all activations; the fastest")),
            Choice(value="selective", label=say("keep what matrices and attention computed; recompute the rest")),
            Choice(value="full", label=say("keep each layer's input; recompute the layer, a third more computation")),
        ),
        help="What the forward pass keeps for the backward pass. Without it, activations grow with layers × tokens, "
        "and are often larger than the model. The gradient is the same, to the last bit. accelerate calls it "
        "fsdp_activation_checkpointing, transformers gradient_checkpointing; this key works with every strategy.",
    ),
    Question(
        key="model.adapter",
        prompt=say("Trained weights"),
        when=_fine_tunes,
        choices=(
            Choice(value="none", label=say("all weights; uses the most memory")),
            Choice(value="lora", label=say("LoRA: small trainable matrices added to the frozen model")),
            Choice(value="qlora", label=say("QLoRA: LoRA on a 4-bit model; needs CUDA and bitsandbytes")),
        ),
        help="none trains the whole model: about 16 bytes per parameter. lora freezes it (2 or 4 bytes) and trains "
        "added matrices of about a hundredth of its size; checkpoints contain only these. qlora keeps the frozen model "
        "in 4 bits: half a byte. Both need a learning rate about ten times larger, and pretrained weights.",
    ),
    Question(
        key="model.lora_rank",
        prompt=say("Rank of the adapter"),
        when=_adapts,
        help="The rank of the change that each matrix of the model can learn. 8 to 64; a higher rank learns more from "
        "large data and costs memory in proportion.",
    ),
    Question(
        key="model.lora_alpha",
        prompt=say("Scale of the adapter (alpha)"),
        when=_adapts,
        help="The adapter is scaled by alpha / rank. Twice the rank is common; it acts like the learning rate.",
    ),
    Question(
        key="model.lora_targets",
        prompt=say("Layers with an adapter"),
        when=_adapts,
        help="all-linear adapts every linear layer except the head. Names separated by commas (q_proj,v_proj) select "
        "some layers: less memory, and usually a worse result.",
    ),
    Question(
        key="model.lora_dropout",
        prompt=say("Dropout of the adapter"),
        when=_adapts,
        help="The share of the adapter's inputs that are set to zero while it is trained, at random in each update: "
        "0.05 to 0.1 where little data is seen several times. A resumed training draws the same.",
    ),
    Question(
        key="model.lora_rslora",
        prompt=say("Scale the adapter by alpha / √rank (rsLoRA)"),
        when=_adapts,
        choices=YES_NO,
        help="With alpha / rank, a higher rank makes each part of the adapter smaller and is hardly used; with the "
        "square root, high ranks (64 and more) learn more. Choose a smaller alpha with it.",
    ),
    Question(
        key="model.lora_dora",
        prompt=say("Learn lengths and directions apart (DoRA)"),
        when=_adapts,
        choices=YES_NO,
        help="DoRA also learns the length of each column of a matrix, and LoRA changes its direction: closer to "
        "training all weights at low ranks, and slower. It needs whole weights: single, ddp, or ZeRO up to stage 2.",
    ),
    Question(
        key="model.merge_adapter",
        prompt=say("Write a merged model at the end"),
        when=_adapts,
        choices=YES_NO,
        help="false saves the adapter in peft's format: small, and loaded together with its base model. true also "
        "writes a whole model with the adapter merged into its weights, for programs that do not support adapters; the "
        "main process creates it in host memory.",
    ),
    Question(
        key="model.output_dtype",
        prompt=say("Type of the saved weights"),
        when=reads_text,
        choices=(
            Choice(value="source", label=say("as the model was loaded; fp32 for random weights")),
            Choice(value="float32", label=say("4 bytes per parameter")),
            Choice(value="bfloat16", label=say("2 bytes per parameter; the range of fp32 with fewer digits")),
            Choice(value="float16", label=say("2 bytes per parameter; more digits, but values above 65504 overflow")),
        ),
        help="The number format of the model that is written at the end, merged, or exported; source is the format in "
        "which it was loaded. Checkpoints and adapters keep the trained values whatever is chosen here.",
    ),
    Question(
        key="data.eval",
        prompt=say("Evaluation data (5%: a part of the training data; null: none)"),
        when=names_data,
        help="Data on which the loss is measured but not trained: a part of the training data that is kept for it (5% "
        "or 200 documents, texts or conversations, chosen by their content, so that equal ones stay together and none "
        "is in both parts), embedded (every tenth of its topics is held out), a hub id (its split validation), or "
        "sources that are not the training data. null turns evaluation off and saves its time.",
    ),
    Question(
        key="data.text_column",
        prompt=say("Column of the texts"),
        when=_reads_columns,
        help="The name of the column (or of the key in JSON) that holds the texts. The default is guessed from the "
        "first row of the data.",
    ),
    Question(
        key="data.label_column",
        prompt=say("Column of the labels"),
        when=_reads_labels,
        help="The name of the column (or of the key in JSON) that holds the labels: classes or numbers. The default is "
        "guessed from the first row of the data.",
    ),
    Question(
        key="data.max_rows",
        prompt=say("Rows to read of each source (0: all)"),
        when=reads_text,
        help="How many rows are read from the beginning of each source: documents, conversations or labelled texts. A "
        "small number makes a first try quick. 0 reads all.",
    ),
    Question(
        key="data.min_tokens",
        prompt=say("Leave out documents with fewer tokens than"),
        when=writes_text,
        help="Documents or conversations with fewer tokens are left out, and counted in the log. 0 leaves out none.",
    ),
    Question(
        key="data.max_tokens",
        prompt=say("Leave out documents with more tokens than (0: none)"),
        when=writes_text,
        help="Documents or conversations with more tokens are left out, and counted in the log. 0 leaves out none: "
        "long documents are cut into pieces, and the end of long conversations is cut off.",
    ),
    Question(
        key="data.cache_dir",
        prompt=say("Folder of tokenized data"),
        when=writes_text,
        help="Where tokenized data is kept. Folders in it are named by what decides the tokens, so that several "
        "projects, and machines with the same disk, can share one and tokenize each data set once. trainwiz cache "
        "lists and cleans it.",
    ),
    Question(
        key="data.num_workers",
        prompt=say("Data workers per rank"),
        help="Processes per rank that prepare batches ahead. 0 reads data in the training process itself, which is "
        "best for data in memory. Each worker costs host memory and space in /dev/shm.",
    ),
    Question(
        key="data.packing",
        prompt=say("Pack several documents into a row"),
        when=writes_text,
        choices=YES_NO,
        help="true fills rows of batch.sequence_length with whole documents and pieces of long ones, by best fit: "
        "there is almost no padding. Positions restart in each document, and attention stays within it. false gives "
        "each document its own row, padded to the longest in the micro-batch: for models that carry state from token "
        "to token (such as Mamba), at several times the cost.",
    ),
    Question(
        key="machine.device",
        prompt=say("Device"),
        when=_never,
        choices=tuple(Choice(value=name, label=say("{name}", name=name)) for name in get_args(v.Device)),
        help="The device of the ranks: cuda or cpu. Support for npu, xpu, mlu and mps follows accelerate's "
        "documentation and was never run by trainwiz.",
    ),
    Question(
        key="machine.num_machines",
        prompt=say("Machines"),
        help="How many machines train together, each with the same number of ranks. Run the same trainwiz launch on "
        "every machine. The world (machine.num_processes) counts the ranks of all machines.",
    ),
    Question(
        key="machine.main_process_ip",
        prompt=say("Address of the first machine"),
        when=_several_machines,
        help="Where the other machines find rank 0: an address or name that every machine can reach. Only for several "
        "machines.",
    ),
    Question(
        key="machine.main_process_port",
        prompt=say("Port on the first machine (0: any free one)"),
        help="The rendezvous port of the ranks. On one machine, 0 lets the system choose one; several machines need an "
        "open port.",
    ),
    Question(
        key="strategy.zero_stage",
        prompt=say("ZeRO stage"),
        when=_never,
        choices=tuple(Choice(value=str(n), label=say("stage {n}", n=n)) for n in range(4)),
        help="What DeepSpeed shards over the ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights. "
        "Each stage saves memory and costs communication. Only with strategy.kind deepspeed.",
    ),
    Question(
        key="strategy.offload_optimizer_device",
        prompt=say("Offload the optimizer to"),
        when=_deepspeed,
        choices=_OFFLOAD,
        help="Where DeepSpeed keeps master weights and moments. cpu frees 12 bytes per parameter on the device, takes "
        "about 18 in host memory, and slows the update down. nvme needs stage 3.",
    ),
    Question(
        key="strategy.offload_param_device",
        prompt=say("Offload the weights to"),
        when=_stage3,
        choices=_OFFLOAD,
        help="Where DeepSpeed keeps weights that are not in use; it has no effect below stage 3. The slowest way to "
        "make a model fit; try everything else first.",
    ),
    Question(
        key="strategy.nvme_path",
        prompt=say("Folder for offloaded state"),
        when=_nvme,
        help="A folder on a fast local disk with room for the offloaded state. Used only with offload to nvme.",
    ),
    Question(
        key="strategy.zero3_init",
        prompt=say("Shard the model while it is created (ZeRO 3)"),
        when=_stage3,
        choices=YES_NO,
        help="Each layer is sharded as soon as it is created, and no rank ever holds the whole model in host memory. "
        "Needed if the model size times the ranks per machine exceeds host memory. Only at stage 3.",
    ),
    Question(
        key="strategy.zero3_save_16bit_model",
        prompt=say("Gather 16-bit weights when saving (ZeRO 3)"),
        when=_stage3,
        choices=YES_NO,
        help="At stage 3 no rank has the whole model: without this, weights cannot be saved as one model at the end of "
        "training. Saving needs memory for one full copy on rank 0.",
    ),
    Question(
        key="batch.per_device_batch_size",
        prompt=say("Micro-batch"),
        when=_never,
        help="Samples that one rank processes in one forward and backward pass. It affects memory and speed, never the "
        "result: accumulation makes up the real batch.",
    ),
    Question(
        key="batch.gradient_accumulation_steps",
        prompt=say("Accumulation"),
        help="Micro-batches per rank and update: computed as real batch / (micro-batch × ranks). If you give it "
        "together with the real batch, the micro-batch is computed instead.",
    ),
    Question(
        key="batch.sequence_length",
        prompt=say("Sequence length in tokens"),
        when=reads_text,
        help="Tokens per sample. Activations grow with it, attention with its square; a model cannot use more tokens "
        "than its maximum positions (tiny and gpt2-124m 1024, llama-1b 2048).",
    ),
    Question(
        key="schedule.train_strategy",
        prompt=say("Unit of the training length"),
        when=_never,
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
        when=_never,
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
            Choice(value="polynomial", label=say("falls along a power of what is left; polynomial_power")),
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
        help="How the rate falls in the last updates under wsd.",
    ),
    Question(
        key="schedule.polynomial_power",
        prompt=say("Power of the polynomial"),
        when=_is_polynomial,
        help="Under polynomial the rate is (what is left of the training) to this power: 1 is a straight line, 2 falls "
        "fast at first.",
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
        "is common for thousands of updates. The average is evaluated, and becomes the model; checkpoints hold both. It "
        "costs 4 bytes per parameter. For single, ddp and fsdp.",
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
        help="Only metrics of your own code (custom) need min or max.",
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
        help="Some metrics are no sums over samples: eval_auc of classifiers, eval_pearson and eval_spearman of "
        "text_regression, and what you write for custom. true gathers the outputs of all ranks in the order of the "
        "data, each sample once, and computes all metrics from them; they must fit in the memory of one rank.",
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
        help="Training waits only until its state is copied into the page cache; syncing it to disk, hashing and "
        "renaming run in the background, one checkpoint at a time. A crash before they finish goes back to the "
        "previous checkpoint.",
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
