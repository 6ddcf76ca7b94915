"""The questions that everybody is asked: at most seven, in this order."""

from __future__ import annotations

from trainwiz import tasks
from trainwiz.message import say
from trainwiz.questions import forms
from trainwiz.questions.table import Choice, Question, Values
from trainwiz.tasks import Task
from trainwiz.tasks.task import DATA_PROMPT, MODEL_PROMPT
from trainwiz.vocabulary import USUAL_TASK


def _task(values: Values) -> Task:
    return tasks.named(values.get("task", USUAL_TASK))


def reads_text(values: Values) -> bool:
    """Whether the task reads text with a model of transformers."""
    return _task(values).from_hub


def names_models(values: Values) -> bool:
    """Whether models beyond the presets may be named."""
    return _task(values).names_models


def sees_pictures(values: Values) -> bool:
    """Whether the task looks at pictures."""
    return _task(values).backbones


def writes_text(values: Values) -> bool:
    """Whether the task's model writes text."""
    return _task(values).generative


def packs_rows(values: Values) -> bool:
    """Whether several documents may share a row."""
    return _task(values).packs


def compares(values: Values) -> bool:
    """Whether the task compares answers."""
    return _task(values).compares


def fine_tunes(values: Values) -> bool:
    """Whether an adapter may be trained in place of all weights."""
    return _task(values).adapters


def _has_trained_weights(values: Values) -> bool:
    """Whether it is a chat model with weights, which an adapter needs; presets start from random ones (TW532)."""
    task = _task(values)
    preset = task.shape(str(values.get("model.name", ""))) is not None
    return task.chats and not values.get("model.from_scratch", preset)


def names_data(values: Values) -> bool:
    """Whether model and data are named in the plan, and not written in task.py."""
    return not _task(values).own_code


BASIC: tuple[Question, ...] = (
    Question(
        key="task",
        gate="basic",
        prompt=say("Task"),
        first=(USUAL_TASK, say("the usual case")),
        choices=tuple(Choice(value=task.name, label=task.summary) for task in tasks.every()),
        help="The training task. It determines what task.py contains: how data is read, the model, the loss and "
        "the metrics. If none fits, choose custom: a small regression with marked places for your own data, "
        "module and loss. You can change it later at no cost: only task.py depends on it.",
    ),
    Question(
        key="model.name",
        paths=True,
        gate="basic",
        sets=("model.name", "model.parameters"),
        reader=forms.read_model,
        shower=forms.show_model,
        prompt=MODEL_PROMPT,
        prompter=lambda values: _task(values).model_prompt,
        when=names_data,
        help="The model to train. tiny (under a million parameters, no tokenizer) trains on a CPU within a minute "
        "and needs no download: for a first run and for tests. gpt2-124m and llama-1b (language models) and "
        "resnet18 (images) are architectures that start from random weights. timm/NAME is an image network "
        "from timm, with its pretrained weights. A folder with a config.json, or a hub id such as "
        "openai-community/gpt2, continues from its weights. The size determines memory, speed, the learning "
        "rate and the recommended strategy; it is read from the model's files, the hub, or the name. If it "
        "is not found, type it after the name: org/model 13B.",
    ),
    Question(
        key="data.train",
        paths=True,
        gate="basic",
        prompt=DATA_PROMPT,
        prompter=lambda values: _task(values).data_prompt,
        when=names_data,
        help="The training data: one source, or several separated by commas. A source is a file (.jsonl, .json, "
        ".csv, .tsv, .parquet, .arrow or .txt; all but .parquet and .arrow also as .gz or .zst), a folder of "
        "such files, a pattern (texts/*.jsonl.gz), a hub dataset (organization/name, "
        "organization/name:subset:split), or a folder from save_to_disk. A .txt file contains one document; "
        "the others have one row per document, labeled text or conversation, in the columns named by "
        "data.text_column and data.label_column. Images are in one folder per class, in files that a table "
        "lists (data.image_column), or in the arrays images and labels of an .npz file. embedded downloads "
        "nothing: it is the language reference that ships with every Python or, for images, scikit-learn's "
        "handwritten digits.",
    ),
    Question(
        key="model.adapter",
        gate="basic",
        prompt=say("Adapter"),
        when=fine_tunes,
        asked=_has_trained_weights,
        choices=(
            Choice(value="none", label=say("all weights, without an adapter: learns most, and uses the most memory")),
            Choice(value="lora", label=say("LoRA: small trainable matrices added to the frozen model")),
            Choice(value="qlora", label=say("QLoRA: LoRA on a 4-bit model; needs CUDA and bitsandbytes")),
        ),
        help="none trains the whole model: about 16 bytes per parameter. lora freezes it (2 or 4 bytes) and "
        "trains added matrices of about a hundredth of its size; checkpoints contain only these. qlora keeps "
        "the frozen model in 4 bits: half a byte, but the experts of a mixture in 16. Both need a learning rate "
        "about ten times higher, and pretrained weights.",
    ),
    Question(
        key="machine.num_processes",
        gate="basic",
        sets=("machine.device", "machine.num_processes"),
        reader=forms.read_machine,
        shower=forms.show_machine,
        prompter=forms.machine_prompt,
        prompt=say("Devices and ranks"),
        help="How many processes train together on all machines, and on which device: one rank per GPU (4, or "
        "cuda 4), or CPU processes (cpu 2) if there is no GPU. More ranks than GPUs are rejected. 2x8 means 8 on each "
        "of 2 machines. For a scheduler's job, name the GPUs that it gets, 2x8xH100, and memory, precision and "
        "strategy are planned for them instead of for this machine. The real batch, and with it the result, does "
        "not depend on this; more ranks are only faster.",
    ),
    Question(
        key="batch.real_batch_size",
        gate="basic",
        sets=("batch.real_batch_size", "batch.per_device_batch_size"),
        reader=forms.read_batch,
        shower=forms.show_batch,
        prompt=say("Real batch, or real batch/micro-batch"),
        # Fine-tuning asks about adapters instead; its batch follows from the data.
        asked=lambda values: not _task(values).chats,
        help="The real batch is the number of samples in one optimizer update, over all ranks: it determines what is "
        "learned. The micro-batch is the number of samples that one rank processes in one forward and backward pass: "
        "it determines memory and speed. Accumulation is computed from both: real batch = micro-batch × accumulation × "
        "ranks. Type 64, or 64/8 to set the micro-batch as well. Out of memory? Halve the micro-batch; the result "
        "stays the same.",
    ),
    Question(
        key="strategy.kind",
        gate="basic",
        sets=(
            "strategy.kind",
            "strategy.zero_stage",
            "strategy.offload_optimizer_device",
            "strategy.offload_param_device",
        ),
        reader=forms.read_strategy,
        shower=forms.show_strategy,
        prompt=say("Strategy"),
        choices=tuple(Choice(value=name, label=label) for name, label in forms.strategies_offered()),
        help="How training state is distributed over the ranks. Use the first one that fits: ddp is the fastest; "
        "zero1, zero2 and zero3 shard optimizer state, gradients and weights, with more and more "
        "communication; +offload moves state to host memory and is slower still (about 18 to 20 bytes of "
        "host memory per parameter). fsdp does the same as zero3 without DeepSpeed. The last five run on "
        "Colossal-AI, which needs its own environment. The recommendation compares the bytes of model state "
        "with the GPU memory.",
    ),
    Question(
        key="schedule.n_steps",
        gate="basic",
        sets=("schedule.train_strategy", "schedule.n_steps", "schedule.n_epochs"),
        reader=forms.read_length,
        shower=forms.show_length,
        prompt=say("Length in steps or epochs"),
        help="How long to train: optimizer updates (500 steps) or passes over the data (3 epochs). With cosine "
        "and linear the learning rate reaches zero exactly at the end, so a different length changes the "
        "whole curve.",
    ),
)
