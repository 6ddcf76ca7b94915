"""The questions behind the gate, and the entries of those keys that a basic question settles together with others."""

from __future__ import annotations

from typing import get_args

from trainwiz import strategies, tasks
from trainwiz import vocabulary as v
from trainwiz.message import say
from trainwiz.questions import forms
from trainwiz.questions.basic import (
    compares,
    fine_tunes,
    names_data,
    names_models,
    packs_rows,
    reads_text,
    sees_pictures,
    writes_text,
)
from trainwiz.questions.cluster import CLUSTER
from trainwiz.questions.table import YES_NO, Choice, Question, Values
from trainwiz.questions.training import TRAINING, never, several_machines
from trainwiz.tasks.preference_losses import LOSSES


def _deepspeed(values: Values) -> bool:
    return strategies.chosen(values.get("strategy.kind", "single"), None).uses_deepspeed


def _stage3(values: Values) -> bool:
    return _deepspeed(values) and values.get("strategy.zero_stage") == 3


def _nvme(values: Values) -> bool:
    return "nvme" in (values.get("strategy.offload_optimizer_device"), values.get("strategy.offload_param_device"))


def _adapts(values: Values) -> bool:
    return fine_tunes(values) and values.get("model.adapter", "none") != "none"


def _mixes(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).weighs and "," in str(values.get("data.train") or "")


def _converses(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).samples == "conversations"


def _renders_talks(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).chats


def _reads_texts(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).from_hub


def _chooses_attention(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).from_hub and _accelerate(values)


def _fuses_layers(values: Values) -> bool:
    return writes_text(values) and _accelerate(values)


def _reads_columns(values: Values) -> bool:
    return tasks.named(values.get("task", v.USUAL_TASK)).text_column


def _reads_labels(values: Values) -> bool:
    task = tasks.named(values.get("task", v.USUAL_TASK))
    return task.labeled and (task.text_column or task.backbones)


def _reads_one_label(values: Values) -> bool:
    task = tasks.named(values.get("task", v.USUAL_TASK))
    return task.text_column and task.labeled and not task.several_columns


def _in_bf16(values: Values) -> bool:
    row = strategies.chosen(values.get("strategy.kind", "single"), values.get("strategy.zero_stage"))
    return row.keeps_trained_dtype and values.get("precision.mixed_precision") == "bf16"


def _owns_parameters(values: Values) -> bool:
    return strategies.chosen(values.get("strategy.kind", "single"), values.get("strategy.zero_stage")).own_parameters


def _accelerate(values: Values) -> bool:
    return values.get("engine") != "colossalai"


def _on_gpus(values: Values) -> bool:
    return values.get("machine.device") == "cuda"


def _shards_with_torch(values: Values) -> bool:
    return strategies.chosen(values.get("strategy.kind", "single"), None).uses_fsdp


def _pushes_apart(values: Values) -> bool:
    return compares(values) and LOSSES[values.get("preference.loss") or "dpo"].has_margin


def _judges(values: Values) -> bool:
    return compares(values) and not LOSSES[values.get("preference.loss") or "dpo"].two_answers


_OFFLOAD = (
    Choice(value="none", label=say("stays on the device")),
    Choice(value="cpu", label=say("host memory")),
    Choice(value="nvme", label=say("a disk; only at stage 3, needs libaio and a path")),
)

ADVANCED: tuple[Question, ...] = (
    Question(
        key="engine",
        prompt=say("Engine"),
        when=never,
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
        key="precision.mixed_precision",
        prompt=say("Precision"),
        choices=(
            Choice(value="no", label=say("fp32 everywhere: exact but slow; recommended on CPUs")),
            Choice(value="bf16", label=say("bf16: half the memory traffic, no loss scaling; Ampere and newer")),
            Choice(value="fp16", label=say("fp16 with a loss scaler: Volta and Turing")),
            Choice(value="fp8", label=say("fp8 matrix multiplication: Ada, Hopper and newer, with torchao")),
        ),
        help="The number format of the forward and backward pass; weights and optimizer keep fp32 masters. bf16 "
        "is the usual choice on Ampere and newer. fp16 needs a loss scaler, which skips updates that "
        "overflow. fp8 needs Ada, Hopper or newer, and torchao: matrix multiplications inside the repeated "
        "layers then use fp8, with a scale for each row, and everything else bf16. fp16 and fp8 have no "
        "benefit on a CPU.",
    ),
    Question(
        key="model.parameters",
        prompt=say("Parameters of the model, in billions"),
        when=never,
        reader=forms.read_parameters,
        shower=forms.show_parameters,
        help="How many parameters the model has: 7B, 350M, or billions (0.5). It determines the memory needed, "
        "and with it the strategy, the length of samples and the micro-batch. It is read from the model's "
        "files, its config.json, the hub, a table of well-known models, or the model's name; this number is "
        "used if none of them gives it, and is checked against them.",
    ),
    Question(
        key="strategy.sync_each_batch",
        prompt=say("Reduce gradients after each micro-batch"),
        when=_shards_with_torch,
        choices=YES_NO,
        help="Under fsdp with accumulation, gradients can be reduced after each micro-batch, so that each rank "
        "keeps only its part of them, or once per update, which communicates less but keeps whole gradients "
        "in fp32 on each rank: 4 bytes per parameter. The result is the same. Reduce after each micro-batch "
        "if memory runs out.",
    ),
    Question(
        key="model.from_scratch",
        prompt=say("Start from random weights"),
        when=names_models,
        choices=YES_NO,
        help="true creates random weights with the model's architecture; false loads its trained weights (for a "
        "preset, from the hub) and continues from them. Continuing needs a learning rate about ten times smaller.",
    ),
    Question(
        key="model.compile",
        prompt=say("Compile the model"),
        when=_accelerate,
        choices=YES_NO,
        help="true lets torch.compile generate kernels for each layer of the model: the same values up to "
        "rounding, for long runs on GPUs. It costs a minute or more at each start, and needs a C++ compiler. "
        "If sample lengths keep changing, layers are compiled one more time, for any length.",
    ),
    Question(
        key="model.activation_checkpointing",
        prompt=say("Activation checkpointing"),
        choices=(
            Choice(value="none", label=say("keep all activations; the fastest")),
            Choice(
                value="selective",
                label=say("keep the results of matrix multiplications and attention; recompute the rest"),
            ),
            Choice(value="full", label=say("keep each layer's input; recompute the layer, a third more computation")),
            Choice(value="offload", label=say("the same, and keep the inputs in host memory; for very long samples")),
        ),
        help="What the forward pass keeps for the backward pass. Without it, activations grow with layers × "
        "tokens, and are often larger than the model. The gradient is the same, bit for bit. Only the inputs "
        "of layers are offloaded: moving what selective keeps would take longer than recomputing it. "
        "accelerate calls it fsdp_activation_checkpointing, transformers gradient_checkpointing; this key "
        "works with every strategy.",
    ),
    Question(
        key="precision.weights",
        prompt=say("Type of the weights that are trained"),
        when=_in_bf16,
        choices=(
            Choice(value="float32", label=say("fp32: small updates are kept")),
            Choice(
                value="bfloat16", label=say("bf16 without fp32 masters: half the memory, and small updates are lost")
            ),
        ),
        help="bfloat16 keeps weights, gradients and moments in 2 bytes each: 8 instead of 16 bytes per parameter with "
        "adamw. A weight then has 8 bits of precision: an update below about a 256th of it is rounded away, so small "
        "learning rates learn nothing. For single and ddp in bf16.",
    ),
    Question(
        key="model.attention",
        prompt=say("Implementation of attention"),
        when=_chooses_attention,
        choices=(
            Choice(value="auto", label=say("the fastest installed one that suits the data")),
            Choice(value="sdpa", label=say("PyTorch's; with a mask where documents share a row")),
            Choice(value="eager", label=say("plain matrix multiplication; slow, and keeps all scores in memory")),
            Choice(value="flash_attention_2", label=say("flash-attn; CUDA in bf16 or fp16")),
            Choice(value="flex_attention", label=say("PyTorch's flex_attention, compiled; language models on CUDA")),
        ),
        help="How the model's attention is computed; the results differ only by rounding. auto uses flash-attn if "
        "it is installed and PyTorch's kernel otherwise; where documents share a row on a GPU, it keeps them "
        "apart without a mask. eager keeps heads x length x length scores for each layer: 4 bytes each in "
        "fp32, otherwise mostly 6.",
    ),
    Question(
        key="model.kernels",
        prompt=say("Kernels for norms, gated MLPs and rotary positions"),
        when=_fuses_layers,
        choices=(
            Choice(value="none", label=say("PyTorch's operators, or those fused by the compiler")),
            Choice(value="liger", label=say("liger-kernel; language models on GPUs that are not compiled")),
        ),
        help="liger-kernel uses one kernel where the model has several operators: the same values up to rounding, "
        "with less memory traffic. torch.compile does that as well, so the two cannot be combined. It helps "
        "most where layers cannot be compiled: ZeRO 3, QLoRA, and short trainings. The loss is compiled with "
        "it.",
    ),
    Question(
        key="model.loss_chunk",
        prompt=say("Tokens whose logits are in memory at the same time"),
        when=writes_text,
        help="The loss of a language model is computed for this many tokens at a time: their logits, a number for "
        "each word of the vocabulary, are often the largest tensor. Larger chunks make the head a little "
        "faster, smaller ones need less memory; the loss differs only by rounding. 1024 tokens with a "
        "vocabulary of 128,000 need 1.7 GiB in bf16.",
    ),
    Question(
        key="model.frozen",
        prompt=say("Parameters that are not trained (embed,layers.0.; null: none)"),
        when=_owns_parameters,
        help="Parameters with one of these words in their names keep their values; * stands for anything. "
        "Embeddings or the first layers of a pretrained model are often frozen. If a word matches no name, "
        "the training ends at its start. For single, ddp and fsdp.",
    ),
    Question(
        key="model.neftune_alpha",
        prompt=say("Noise on the embeddings (NEFTune; 0: off)"),
        when=writes_text,
        help="Adds uniform noise of alpha / sqrt(tokens x hidden size) to the embeddings during training: 5 to 15 "
        "can improve answers after fine-tuning on few conversations. A resumed training uses the same noise; "
        "a different number of ranks uses different noise, as with dropout.",
    ),
    Question(
        key="model.lora_rank",
        prompt=say("Rank of the adapter"),
        when=_adapts,
        help="The rank of the change that each matrix of the model can learn. 8 to 64; a higher rank learns more "
        "from large data, and its memory grows in proportion.",
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
        help="The share of the adapter's inputs that is randomly set to zero in each update of the training: 0.05 "
        "to 0.1 if little data is seen several times. A resumed training sets the same ones to zero.",
    ),
    Question(
        key="model.lora_rslora",
        prompt=say("Scale the adapter by alpha / √rank (rsLoRA)"),
        when=_adapts,
        choices=YES_NO,
        help="With alpha / rank, a higher rank makes each part of the adapter smaller, so that it is hardly used; "
        "with the square root, high ranks (64 and more) learn more. Choose a smaller alpha with it.",
    ),
    Question(
        key="model.lora_dora",
        prompt=say("Learn the length of each row apart from its direction (DoRA)"),
        when=_adapts,
        choices=YES_NO,
        help="The adapter changes the direction of each row of a matrix, and a number per row its length. It can learn "
        "more at low ranks (8 and less), but each forward pass computes all matrices with their adapters again: it is "
        "slower and needs more memory.",
    ),
    Question(
        key="model.modules_to_save",
        prompt=say("Fully trained modules (embed_tokens,lm_head; null: none)"),
        when=_adapts,
        help="Modules of the model that are fully trained in addition to the adapter, and saved with it: "
        "embed_tokens,lm_head for tokens that the model has not seen. A new head for labels is always "
        "trained. Embeddings that are also the head (tied) are listed together with it, and become separate.",
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
            Choice(
                value="float16",
                label=say("2 bytes per parameter; more digits than bf16, but values above 65504 overflow"),
            ),
        ),
        help="The number format of the model that is written at the end, merged, or exported; source is the "
        "format in which it was loaded. Checkpoints and adapters always keep the trained values.",
    ),
    Question(
        key="model.push_to_hub",
        prompt=say("Upload the trained model to the hub (ORG/NAME; null: no)"),
        help="The repository of the Hugging Face hub to which `trainwiz launch` uploads the model when training "
        "has ended: merged/ if it exists, otherwise model/. Your user name also works as ORG. It needs a "
        "token with write access (hf auth login, or HF_TOKEN), which is checked before the launch. If the "
        "upload fails, the model is still on disk, and the command to upload it later is shown.",
    ),
    Question(
        key="model.push_public",
        prompt=say("Public repository"),
        when=lambda values: bool(values.get("model.push_to_hub")),
        choices=YES_NO,
        help="Whether a new repository for the model is public. An existing one stays as it is.",
    ),
    Question(
        key="preference.loss",
        prompt=say("Loss on preferences"),
        when=compares,
        choices=(
            Choice(
                value="dpo",
                label=say("DPO: makes the chosen answer likelier than the rejected one, relative to a reference"),
            ),
            Choice(value="ipo", label=say("IPO: the same, but only up to a fixed margin; overfits less")),
            Choice(value="orpo", label=say("ORPO: no reference; also fine-tunes on the chosen answers")),
            Choice(value="kto", label=say("KTO: single answers labeled good or bad; pairs are split")),
            Choice(value="simpo", label=say("SimPO: no reference; mean log-probabilities and a margin")),
        ),
        help="How answers are compared. dpo, ipo and kto compare with the model before training: its "
        "log-probabilities are computed once and stored with the tokenized data, so no second model is in "
        "memory. orpo and simpo need no reference. orpo starts from a base model, the others from a "
        "fine-tuned one. kto also reads rows of prompt, completion and label.",
    ),
    Question(
        key="preference.beta",
        prompt=say("Beta of the loss (null: its usual value)"),
        when=compares,
        help="With dpo, ipo and kto, how strongly the model is held to its reference: a larger beta changes it "
        "less (0.01 to 0.5). With orpo, the weight of the comparison relative to fine-tuning; with simpo, "
        "the scale of rewards (2 to 10). null means 0.1, or 2 with simpo.",
    ),
    Question(
        key="preference.gamma",
        prompt=say("Margin between rewards"),
        when=_pushes_apart,
        help="With simpo, by how much the chosen answer's reward should be higher: a quarter to a half of beta is "
        "common.",
    ),
    Question(
        key="preference.desirable_weight",
        prompt=say("Weight of good answers"),
        when=_judges,
        help="With kto, the weight of good answers in the loss. If there are several times more bad answers than "
        "good ones, raise it until both count about the same.",
    ),
    Question(
        key="preference.undesirable_weight",
        prompt=say("Weight of bad answers"),
        when=_judges,
        help="With kto, the weight of bad answers in the loss. If there are several times more good answers than "
        "bad ones, raise it until both count about the same.",
    ),
    Question(
        key="data.eval",
        paths=True,
        prompt=say("Evaluation data (5%: a part of the training data; null: none)"),
        when=names_data,
        help="Data for measuring the loss without training on it: a part held out from the training data (5% or "
        "200 documents, texts or conversations, chosen by their content, so that equal ones stay together "
        "and none is in both parts), embedded (every tenth of its topics is held out), a hub id (its split "
        "validation), or sources that are not the training data. null turns evaluation off and saves its "
        "time.",
    ),
    Question(
        key="data.source_weights",
        prompt=say("Weights of the sources, in their order (3,1; null: none)"),
        when=_mixes,
        help="The share of the training that each source of data.train gets: 3,1 takes three quarters of an epoch from "
        "the first. Every sample is seen at least once in an epoch: the source that is largest for its weight once, "
        "the others as often as their shares require; the training logs how often. null takes each sample once.",
    ),
    Question(
        key="data.weigh_by",
        prompt=say("What the weights count"),
        when=_mixes,
        choices=(
            Choice(value="tokens", label=say("predicted tokens")),
            Choice(value="samples", label=say("documents, conversations or samples with labels")),
        ),
        help="Whether data.source_weights are shares of the tokens or of the samples (documents, conversations, pairs "
        "of answers, texts). Sources with long samples need fewer of them for the same tokens. Images are samples.",
    ),
    Question(
        key="data.train_on",
        prompt=say("What to learn from conversations"),
        when=_converses,
        choices=(
            Choice(value="answers", label=say("what the assistant says")),
            Choice(value="all", label=say("prompts as well")),
        ),
        help="answers learns only what the assistant says, after the same prompt that the model gets at "
        "inference. all learns every token of a conversation, as in a document: for base models, short "
        "prompts, or custom formats. Answers that the data excludes (weight 0) are not learned in either "
        "case.",
    ),
    Question(
        key="data.chat_template",
        paths=True,
        prompt=say("Chat template (chatml, or a file; null: the tokenizer's own)"),
        when=_renders_talks,
        help="How a conversation is written as text: chatml, or a file with a Jinja template in the format of "
        "transformers. It is rendered once at the start, must contain what is said, and is saved with the "
        "tokenizer; generation then stops at the token that ends an answer in the template. Special tokens "
        "that it writes must be in the tokenizer, or in data.special_tokens.",
    ),
    Question(
        key="data.special_tokens",
        prompt=say("Special tokens to add (<|im_start|>,eos_token=<|im_end|>; null: none)"),
        when=_reads_texts,
        help="Tokens that the tokenizer never splits, and omits from the text that people read. bos_token=, "
        "eos_token=, pad_token= and unk_token= give one a role: generation ends with eos_token. Tokens that "
        "the tokenizer lacks are added, and the model gets a row for each in its embeddings and its head, "
        "initialized near the mean of the others. They are saved with the model. With an adapter, "
        "model.modules_to_save must list embeddings and head.",
    ),
    Question(
        key="data.added_tokens",
        prompt=say("Other tokens to add (<tool_call>,</tool_call>; null: none)"),
        when=_reads_texts,
        help="The same for tokens that stay in the text that people read: marks of tool calls or reasoning, or "
        "domain words that the tokenizer would split.",
    ),
    Question(
        key="data.columns",
        prompt=say("What columns are read as (null: according to their names)"),
        when=_renders_talks,
        help="Columns of conversations or preferences with custom names: prompt=ask,completion=reply reads the "
        "column ask as the prompt and reply as the answer. Words: messages, system, tools, history, prompt, "
        "input, completion; for preferences also chosen, rejected, label. answers.text.0 is a path into a "
        "nested column. The default is guessed from the first row of the data.",
    ),
    Question(
        key="data.text_column",
        prompt=say("Column of the texts"),
        when=_reads_columns,
        of_columns=_reads_columns,
        help="The name of the column (or JSON key) with the texts. The default is guessed from the first row of "
        "the data.",
    ),
    Question(
        key="data.image_column",
        prompt=say("Column of the images"),
        when=sees_pictures,
        of_columns=sees_pictures,
        help="If images come from a table: the name of the column with their paths, relative to the table's "
        "folder. The default is guessed from the first row of the data.",
    ),
    Question(
        key="data.label_column",
        prompt=say("Column of the labels"),
        when=_reads_labels,
        of_columns=_reads_one_label,
        help="The name of the column (or JSON key) with the labels: classes or numbers. The default is guessed "
        "from the first row of the data. text_multilabel and image_multilabel read lists (cat|dog) from one "
        "column, or 0 and 1 from several: cat,dog.",
    ),
    Question(
        key="data.max_rows",
        prompt=say("Rows to read of each source (0: all)"),
        when=names_models,
        help="How many rows are read from the start of each source: documents, conversations, labeled texts or "
        "images. A small number makes a first try quick. 0 reads all.",
    ),
    Question(
        key="data.image_size",
        prompt=say("Size of the images"),
        when=sees_pictures,
        help="Images from files are resized to squares whose sides have this many pixels. Small details need large "
        "images; time and memory grow with the square. Most pretrained networks expect 224. Arrays are not resized.",
    ),
    Question(
        key="data.augmentation",
        prompt=say("Randomly augment the training images"),
        when=sees_pictures,
        choices=(
            Choice(value="none", label=say("each epoch sees the same images")),
            Choice(value="shift", label=say("shift them by up to an eighth; for digits, letters and measurements")),
            Choice(value="flip", label=say("shift, and mirror half of them; where left and right do not matter")),
            Choice(value="crop", label=say("parts of 35 to 100 % of the area, mirrored; common for photos")),
            Choice(value="color", label=say("crop, and vary brightness, contrast and saturation")),
        ),
        help="Images that look different in each epoch are harder to memorize. Choose changes that keep the label "
        "true: a mirrored letter is another letter, and a crop may miss a small labeled object. The changes "
        "depend only on seed, epoch and image, so a resumed training and any number of ranks see the same.",
    ),
    Question(
        key="data.min_tokens",
        prompt=say("Drop documents with fewer tokens than"),
        when=writes_text,
        help="Documents or conversations with fewer tokens are dropped, and counted in the log. 0 drops none.",
    ),
    Question(
        key="data.max_tokens",
        prompt=say("Drop documents with more tokens than (0: none)"),
        when=writes_text,
        help="Documents or conversations with more tokens are dropped, and counted in the log. 0 drops none: long "
        "documents are split into pieces, and long conversations are truncated at the end.",
    ),
    Question(
        key="data.cache_dir",
        paths=True,
        prompt=say("Folder of tokenized data"),
        when=writes_text,
        help="Where tokenized data is kept. Its folders are named after everything that determines the tokens, so "
        "that several projects, and machines that share a disk, can use the same one and tokenize each "
        "dataset once. trainwiz cache lists and cleans it.",
    ),
    Question(
        key="data.num_workers",
        prompt=say("Data workers per rank"),
        help="Processes per rank that prepare batches in advance. 0 reads data in the training process itself, "
        "which is best for data in memory. Each worker uses host memory and space in /dev/shm.",
    ),
    Question(
        key="data.packing",
        prompt=say("Pack several documents into a row"),
        when=packs_rows,
        choices=YES_NO,
        help="true fills rows of batch.sequence_length with whole documents and pieces of long ones, by best fit: "
        "there is almost no padding. Positions restart in each document, and attention stays within it. false gives "
        "each document its own row, padded to the longest in the micro-batch: for models that carry state from token "
        "to token (such as Mamba), at several times the cost.",
    ),
    Question(
        key="machine.device",
        prompt=say("Device"),
        when=never,
        choices=tuple(Choice(value=name, label=say("{name}", name=name)) for name in get_args(v.Device)),
        help="The device of the ranks: cuda or cpu. Support for npu, xpu, mlu and mps follows accelerate's "
        "documentation; trainwiz has never been run on them.",
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
        when=several_machines,
        help="Where the other machines find rank 0: an address or name that every machine can reach. Only for several "
        "machines.",
    ),
    Question(
        key="machine.main_process_port",
        prompt=say("Port on the first machine (0: any free one)"),
        help="The rendezvous port of the ranks. On one machine, 0 lets the system choose a port; several machines "
        "need an open port.",
    ),
    Question(
        key="machine.numa_binding",
        prompt=say("Bind each rank to the NUMA node of its GPU"),
        when=_on_gpus,
        choices=(
            Choice(value="auto", label=say("only when state or activations are kept in host memory")),
            Choice(value="always", label=say("always")),
            Choice(value="never", label=say("leave the cores to the system")),
        ),
        help="On machines with several NUMA nodes (usually one per CPU socket), a rank that stays on the cores "
        "next to its GPU also has its host memory there, so that copies to and from the GPU take the "
        "shortest path. At its start, the rank finds the node by its GPU's PCI address, uses only the cores "
        "that it is allowed to use, and logs what it did. If the node is unknown, nothing is bound.",
    ),
    *CLUSTER,
    Question(
        key="strategy.zero_stage",
        prompt=say("ZeRO stage"),
        when=never,
        choices=tuple(Choice(value=str(n), label=say("stage {n}", n=n)) for n in range(4)),
        help="What DeepSpeed shards across the ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also "
        "weights. Each stage saves memory and costs communication. Only with strategy.kind deepspeed.",
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
        help="Where DeepSpeed keeps weights that are not in use; it has no effect below stage 3. The slowest way "
        "to make a model fit: try everything else first.",
    ),
    Question(
        key="strategy.nvme_path",
        paths=True,
        prompt=say("Folder for offloaded state"),
        when=_nvme,
        help="A folder on a fast local disk with room for the offloaded state. Used only with offload to nvme.",
    ),
    Question(
        key="strategy.zero3_init",
        prompt=say("Shard the model while it is created (ZeRO 3)"),
        when=_stage3,
        choices=YES_NO,
        help="Each layer is sharded as soon as it is created, so that no rank ever holds the whole model in host "
        "memory. Needed if the model size times the ranks per machine exceeds host memory. Only at stage 3.",
    ),
    Question(
        key="strategy.zero3_save_16bit_model",
        prompt=say("Gather 16-bit weights when saving (ZeRO 3)"),
        when=_stage3,
        choices=YES_NO,
        help="At stage 3 no rank has the whole model; without this, the weights cannot be saved as one model at "
        "the end of training. Saving needs memory for one full copy on rank 0.",
    ),
    Question(
        key="batch.per_device_batch_size",
        prompt=say("Micro-batch"),
        when=never,
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
    *TRAINING,
)
