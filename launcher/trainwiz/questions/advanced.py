"""The questions behind the gate, and the entries of those keys that a basic question settles together with others."""

from __future__ import annotations

from typing import get_args

from trainwiz import strategies, tasks
from trainwiz import vocabulary as v
from trainwiz.message import say
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


def _accelerate(values: Values) -> bool:
    return values.get("engine") != "colossalai"


def _evaluates(values: Values) -> bool:
    return names_data(values)


def _never(_: Values) -> bool:
    # The basic questions ask it together with its neighbours; here it only has its entry.
    return False


YES_NO = (
    Choice(value="true", label=say("yes")),
    Choice(value="false", label=say("no")),
)
_OFFLOAD = (
    Choice(value="none", label=say("stays on the device")),
    Choice(value="cpu", label=say("host memory")),
    Choice(value="nvme", label=say("a disk; stage 3 only, needs libaio and a path")),
)

ADVANCED: tuple[Question, ...] = (
    Question(
        key="engine",
        prompt=say("Engine"),
        when=_never,
        choices=tuple(Choice(value=name, label=say("{name}", name=name)) for name in get_args(v.Engine)),
        help=say(
            "What the training loop is built on, as strategy.kind says: accelerate drives DDP, DeepSpeed and FSDP with "
            "one script, colossalai the plugins of Colossal-AI's Booster."
        ),
    ),
    Question(
        key="seed",
        prompt=say("Seed"),
        help=say(
            "Decides initial weights, the order of the data and dropout. The same seed and plan give the same curve, "
            "whatever the number of ranks. From 0 to 4294967295."
        ),
    ),
    Question(
        key="model.from_scratch",
        prompt=say("Start from random weights"),
        when=reads_text,
        choices=YES_NO,
        help=say(
            "true makes random weights of the model's shape; false loads its trained weights (for a preset, from the "
            "hub) and continues from them. Continuing wants a learning rate that is about ten times smaller."
        ),
    ),
    Question(
        key="model.compile",
        prompt=say("Compile the model"),
        when=_accelerate,
        choices=YES_NO,
        help=say(
            "true lets torch.compile make kernels for each layer of the model: the same numbers up to rounding, meant "
            "for long runs on GPUs. It costs a minute or more at each start, and needs a C++ compiler. Samples of ever "
            "new lengths are compiled once more, and then for any length."
        ),
    ),
    Question(
        key="model.adapter",
        prompt=say("What is trained"),
        when=_fine_tunes,
        choices=(
            Choice(value="none", label=say("all weights; the most memory")),
            Choice(value="lora", label=say("LoRA: small matrices beside the frozen model")),
            Choice(value="qlora", label=say("QLoRA: the same beside a model in 4 bits; needs CUDA and bitsandbytes")),
        ),
        help=say(
            "none trains the whole model: about 16 bytes per parameter. lora freezes it (2 or 4 bytes) and trains "
            "about a hundredth of its size beside it; checkpoints hold nothing else. qlora keeps the frozen model in 4 "
            "bits: half a byte. Both want a learning rate about ten times larger, and weights that were trained "
            "before."
        ),
    ),
    Question(
        key="model.lora_rank",
        prompt=say("Rank of the adapter"),
        when=_adapts,
        help=say(
            "How many directions each matrix of the model can be changed in. 8 to 64; more learns more from much data "
            "and costs memory in proportion."
        ),
    ),
    Question(
        key="model.lora_alpha",
        prompt=say("Scale of the adapter (alpha)"),
        when=_adapts,
        help=say("The adapter counts alpha / rank times. Twice the rank is usual; it acts like the learning rate."),
    ),
    Question(
        key="model.lora_targets",
        prompt=say("Layers with an adapter"),
        when=_adapts,
        help=say(
            "all-linear puts one beside every linear layer but the head. Names with commas (q_proj,v_proj) choose "
            "some: less memory, and as a rule a worse result."
        ),
    ),
    Question(
        key="model.merge_adapter",
        prompt=say("Write a merged model at the end"),
        when=_adapts,
        choices=YES_NO,
        help=say(
            "false leaves the adapter as peft keeps it: small, and loaded with the model that it was trained on. true "
            "also writes a whole model with the adapter in its weights, for programs that know nothing of adapters; "
            "the main process makes it in host memory."
        ),
    ),
    Question(
        key="data.eval",
        prompt=say("Evaluation data (null: none)"),
        when=_evaluates,
        help=say(
            "What the loss is measured on without learning from it: embedded (every tenth of its topics is kept for "
            "this), a hub id (its split validation), or a file or folder that is not the training data. null switches "
            "evaluation off and saves its time."
        ),
    ),
    Question(
        key="data.num_workers",
        prompt=say("Data workers per rank"),
        help=say(
            "Processes per rank that prepare batches ahead. 0 reads in the training process itself: right for data in "
            "memory. Each worker costs host memory and space in /dev/shm."
        ),
    ),
    Question(
        key="data.packing",
        prompt=say("Let documents share a row"),
        when=writes_text,
        choices=YES_NO,
        help=say(
            "true fills rows of batch.sequence_length with whole documents and pieces of long ones, by best fit: "
            "hardly a place is padding. Positions begin anew in each document, and attention stays inside of it. false "
            "gives each document a row of its own, padded to the longest in the micro-batch: for models that carry "
            "state from token to token (Mamba and the like), at several times the cost."
        ),
    ),
    Question(
        key="machine.device",
        prompt=say("Device"),
        when=_never,
        choices=tuple(Choice(value=name, label=say("{name}", name=name)) for name in get_args(v.Device)),
        help=say(
            "What the ranks compute on: cuda or cpu. npu, xpu, mlu and mps are written from accelerate's "
            "documentation and were never run by trainwiz."
        ),
    ),
    Question(
        key="machine.num_machines",
        prompt=say("Machines"),
        help=say(
            "How many machines train together, each with the same number of ranks. The same trainwiz launch is then "
            "run on every one of them. The world (machine.num_processes) counts ranks over all machines."
        ),
    ),
    Question(
        key="machine.main_process_ip",
        prompt=say("Address of the first machine"),
        when=_several_machines,
        help=say("Where the others find rank 0: an address or name that every machine can reach. Only for several."),
    ),
    Question(
        key="machine.main_process_port",
        prompt=say("Port on the first machine (0: any free one)"),
        help=say("Where the ranks meet. On one machine 0 lets the system choose; several need an open one."),
    ),
    Question(
        key="strategy.zero_stage",
        prompt=say("ZeRO stage"),
        when=_never,
        choices=tuple(Choice(value=str(n), label=say("stage {n}", n=n)) for n in range(4)),
        help=say(
            "What DeepSpeed cuts over the ranks: 0 nothing, 1 optimizer state, 2 gradients as well, 3 weights as well. "
            "Each stage saves memory and costs communication. Only with strategy.kind deepspeed."
        ),
    ),
    Question(
        key="strategy.offload_optimizer_device",
        prompt=say("Offload the optimizer to"),
        when=_deepspeed,
        choices=_OFFLOAD,
        help=say(
            "Where DeepSpeed keeps master weights and moments. cpu frees 12 bytes per parameter on the device, takes "
            "about 18 in host memory, and makes the update slower. nvme needs stage 3."
        ),
    ),
    Question(
        key="strategy.offload_param_device",
        prompt=say("Offload the weights to"),
        when=_stage3,
        choices=_OFFLOAD,
        help=say(
            "Where DeepSpeed keeps weights that are not in use; below stage 3 it has no effect. The slowest way to "
            "make a model fit, and the last one to try."
        ),
    ),
    Question(
        key="strategy.nvme_path",
        prompt=say("Folder for offloaded state"),
        when=_nvme,
        help=say("A folder on a fast local disk with room for the offloaded state. Only with offload to nvme."),
    ),
    Question(
        key="strategy.zero3_init",
        prompt=say("Shard the model while it is made (ZeRO 3)"),
        when=_stage3,
        choices=YES_NO,
        help=say(
            "Each layer is cut as soon as it is made, so that no rank ever holds the whole model in host memory. "
            "Needed where the model times the ranks per machine does not fit there. Only at stage 3."
        ),
    ),
    Question(
        key="strategy.zero3_save_16bit_model",
        prompt=say("Gather 16-bit weights when saving (ZeRO 3)"),
        when=_stage3,
        choices=YES_NO,
        help=say(
            "At stage 3 no rank has the whole model: without this, weights cannot be saved in one piece at the end of "
            "training. It costs memory for one copy on rank 0 while saving."
        ),
    ),
    Question(
        key="batch.per_device_batch_size",
        prompt=say("Micro-batch"),
        when=_never,
        help=say(
            "Samples that one rank takes through one forward and backward. It decides memory and speed, never the "
            "result: accumulation makes up the real batch."
        ),
    ),
    Question(
        key="batch.gradient_accumulation_steps",
        prompt=say("Accumulation"),
        help=say(
            "Micro-batches per rank and update: solved as real batch / (micro-batch × ranks). Give it together with "
            "the real batch and the micro-batch is solved instead."
        ),
    ),
    Question(
        key="batch.sequence_length",
        prompt=say("Sequence length in tokens"),
        when=reads_text,
        help=say(
            "Tokens per sample. Activations grow with it, attention with its square; a model cannot see more than its "
            "maximum positions (tiny and gpt2-124m 1024, llama-1b 2048)."
        ),
    ),
    Question(
        key="schedule.train_strategy",
        prompt=say("Count the length in"),
        when=_never,
        choices=(
            Choice(value="steps", label=say("optimizer updates")),
            Choice(value="epochs", label=say("passes over the data")),
        ),
        help=say("What the length counts: optimizer updates (schedule.n_steps) or passes (schedule.n_epochs)."),
    ),
    Question(
        key="schedule.n_epochs",
        prompt=say("Epochs"),
        when=_never,
        help=say("Passes over the training data, where schedule.train_strategy is epochs."),
    ),
    Question(
        key="schedule.n_warmup_steps",
        prompt=say("Warm-up in updates"),
        help=say(
            "Updates over which the learning rate rises from zero. Adam's first steps are noisy; without warm-up a "
            "high rate can ruin the weights at the start. Must be shorter than the training."
        ),
    ),
    Question(
        key="schedule.lr_scheduler_type",
        prompt=say("Learning rate after warm-up"),
        choices=(
            Choice(value="cosine", label=say("falls along a cosine; the usual one for pretraining")),
            Choice(value="linear", label=say("falls in a straight line; usual for fine-tuning")),
            Choice(value="constant", label=say("stays")),
        ),
        help=say(
            "How the rate moves after warm-up, counted in updates. cosine and linear fall to zero exactly at the end "
            "of the training."
        ),
    ),
    Question(
        key="optimizer.name",
        prompt=say("Optimizer"),
        choices=(
            Choice(value="adamw", label=say("Adam with decoupled weight decay; 8 bytes of state per parameter")),
            Choice(value="sgd", label=say("stochastic gradient descent")),
        ),
        help=say("What makes an update of a gradient. adamw for transformers; sgd for vision models and regressions."),
    ),
    Question(
        key="optimizer.learning_rate",
        prompt=say("Learning rate"),
        help=say(
            "The highest rate, reached after warm-up. Larger models want smaller rates, continuing from trained "
            "weights a tenth. Too high: the loss jumps or becomes NaN. Too low: it hardly falls."
        ),
    ),
    Question(
        key="optimizer.weight_decay",
        prompt=say("Weight decay"),
        help=say("Pulls weights towards zero at every update; 0.1 is usual for pretraining, 0 switches it off."),
    ),
    Question(
        key="optimizer.gradient_clipping",
        prompt=say("Gradient clipping (0: off)"),
        help=say(
            "Scales the gradient of the whole real batch down to this norm if it is longer. 1.0 saves a run from "
            "single bad batches and costs one norm per update."
        ),
    ),
    Question(
        key="checkpoint.checkpointing_steps",
        prompt=say("Checkpoint every so many updates (0: only at the end)"),
        help=say(
            "How much work is lost at most when a run dies. A checkpoint takes about 12 bytes per parameter on disk "
            "and stops the training while it is written."
        ),
    ),
    Question(
        key="checkpoint.checkpoints_total_limit",
        prompt=say("Checkpoints to keep (null: all)"),
        help=say("Older complete checkpoints beyond this number are deleted, the newest one never. 2 or more."),
    ),
    Question(
        key="checkpoint.background",
        prompt=say("Finish checkpoints beside the training"),
        choices=YES_NO,
        help=say(
            "The training then waits only until its state is copied into the page cache; syncing it to the disk, "
            "hashing and renaming go on beside it, one checkpoint at a time. Until that is done, a crash goes back to "
            "the checkpoint before."
        ),
    ),
    Question(
        key="checkpoint.on_failed_save",
        prompt=say("When a checkpoint cannot be written"),
        choices=(
            Choice(value="continue", label=say("say so, and train on; the next one is tried again")),
            Choice(value="stop", label=say("end the training with an error")),
        ),
        help=say(
            "A full disk, or one that fails. Earlier checkpoints stay as they are either way. Where what was trained "
            "last could not be saved, the training ends with an error also under continue."
        ),
    ),
    Question(
        key="tracking.log_with",
        prompt=say("Tracker"),
        choices=(
            Choice(value="none", label=say("metrics.jsonl only")),
            Choice(value="tensorboard", label=say("files for TensorBoard as well")),
            Choice(value="wandb", label=say("Weights & Biases; needs its package and an account")),
        ),
        help=say("metrics.jsonl is always written. A tracker shows the same numbers elsewhere, from rank 0 only."),
    ),
    Question(
        key="tracking.logging_steps",
        prompt=say("Log every so many updates"),
        help=say("Numbers are read from the device only then; in between, the GPU runs ahead undisturbed."),
    ),
    Question(
        key="supervision.on_hang",
        prompt=say("When no progress comes any more"),
        choices=(
            Choice(value="wait", label=say("say where each rank is, and wait")),
            Choice(value="stop", label=say("end the run with exit code 124, once nothing has moved")),
        ),
        help=say(
            "A hang costs as much as a training until somebody looks. wait only says where each rank is; stop also "
            "ends the run, so that a scheduler or max_restarts can begin again. --on-hang says otherwise for one "
            "launch."
        ),
    ),
    Question(
        key="supervision.hang_limit",
        prompt=say("Seconds of silence that count as a hang (0: learned)"),
        help=say(
            "0 learns it from the run: five times its slowest silence, at least 300 s. Another number takes the place "
            "of the 300: raise it where an evaluation or a checkpoint takes longer than anything before."
        ),
    ),
    Question(
        key="supervision.max_restarts",
        prompt=say("Restarts after a failure that may pass"),
        when=_one_machine,
        help=say(
            "How often launch begins again from the newest checkpoint by itself after a crash that may pass: a killed "
            "rank, a lost connection, a hang that was stopped. A failure that would come again is never repeated. "
            "0 leaves it to you; for one machine only."
        ),
    ),
)
