"""Attention, chat templates, weights of sources, and what is learned of conversations: options of some tasks only."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from trainwiz import tasks
from trainwiz.engines.transformers import MASKS_SINCE, takes_masks
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule
from trainwiz.rules.versions import install, lacks

_HALF = ("bf16", "fp16")


@rule("TW543", level=Level.ERROR, field="model.attention")
def attention_suits_the_model_and_the_device(plan: Plan) -> Violations:
    """The task, engine, device and precision must support the attention implementation.

    Without it: flash_attention_2 stops with `FlashAttention only support fp16 and bf16 data type`, flex_attention on a
    CPU with `FlexAttention does not support backward on CPU`; other tasks and engines ignore the key.
    Why: transformers models can choose an implementation of attention; your own models and image networks have their
    own. flash-attn is written for CUDA in 16 bits; flex_attention has gradients only on GPUs, and was not tested with
    encoders.
    Instead: set model.attention to auto, or to sdpa, which runs everywhere.
    Source: https://huggingface.co/docs/transformers/attention_interface
    """
    chosen, task = plan.model.attention, tasks.of(plan)
    if chosen == "auto":
        return
    fix = setting("model.attention", "auto")
    if not task.from_hub or plan.engine != "accelerate":
        yield violation(
            "model.attention is {attention}, but the task {task} on {engine} does not support choosing it", fix
        )
    elif chosen == "flash_attention_2" and (
        plan.machine.device != "cuda" or plan.precision.mixed_precision not in _HALF
    ):
        yield violation(
            "model.attention is {attention}, which supports bf16 or fp16 on CUDA, not {precision} on {device}",
            fix,
            precision=plan.precision.mixed_precision,
            device=plan.machine.device,
        )
    elif chosen == "flex_attention" and (plan.machine.device != "cuda" or not task.generative):
        yield violation(
            "model.attention is {attention}, which is for language models on CUDA, not for the task {task} on {device}",
            fix,
            task=plan.task,
            device=plan.machine.device,
        )


@rule("TW544", level=Level.ERROR, field="model.attention")
def flash_attention_is_installed(plan: Plan, machine: Machine) -> Violations:
    """flash_attention_2 needs the package flash-attn.

    Without it: the training stops with `ImportError: FlashAttention2 has been toggled on, but it cannot be used`.
    Why: it is a separate package, compiled for one version of torch and CUDA.
    Instead: install flash-attn, or set model.attention to auto: PyTorch's own kernel keeps packed documents apart.
    Source: https://huggingface.co/docs/transformers/perf_infer_gpu_one#flashattention
    """
    if plan.model.attention == "flash_attention_2" and (python := lacks(machine, "flash-attn")):
        fix = install(python, "flash-attn")
        yield violation(
            "model.attention is {attention}, but flash-attn is not installed in {python}", fix, python=python
        )


@rule("TW545", level=Level.ERROR, field="data.train_on")
def only_conversations_have_prompts(plan: Plan) -> Violations:
    """data.train_on needs the task sft.

    Without it: the key is ignored: documents are learned whole, and preference answers without their prompts.
    Why: only conversations have prompts that can be learned or not.
    Instead: set data.train_on to answers, or the task to sft.
    Source: the generated chat.py
    """
    if plan.data.train_on != "answers" and tasks.of(plan).samples != "conversations":
        yield violation(
            "data.train_on is {train_on}, but the task {task} has no conversations",
            setting("data.train_on", "answers"),
            task=plan.task,
        )


@rule("TW546", level=Level.ERROR, field="data.chat_template")
def a_chat_template_needs_a_tokenizer(plan: Plan, project: Project) -> Violations:
    """data.chat_template must be a name or a file, for conversations and a model with a tokenizer.

    Without it: the training stops with `this chat template cannot be used`, or the key is ignored.
    Why: a template writes a conversation as text for the model's tokenizer. The tiny model has none; documents and
    labeled texts have no conversations.
    Instead: set data.chat_template to chatml or to a file with a Jinja template, relative to the project's folder; null
    uses the tokenizer's own.
    Source: https://huggingface.co/docs/transformers/chat_templating
    """
    name = plan.data.chat_template
    if name is None:
        return
    fix = remedy("set data.chat_template to null, chatml, or a file", {"data.chat_template": None})
    if not tasks.of(plan).chats:
        yield violation("data.chat_template is {name}, but the task {task} has no conversations", fix, name=name)
    elif project.reads_bytes:
        yield violation(
            "data.chat_template is {name}, but the model {model} reads bytes, without a template",
            fix,
            name=name,
            model=plan.model.name,
        )
    elif project.chat_template:
        yield violation("data.chat_template: {name}: {detail}", fix, name=name, detail=project.chat_template)


@rule("TW554", level=Level.ERROR, field="data.special_tokens")
def new_tokens_need_rows_that_are_learned(plan: Plan, project: Project) -> Violations:
    """Tokens can be added only if the model has a tokenizer and their rows are trained.

    Without it: the keys are ignored, or the training stops before its first update: the rows of new tokens would stay
    near the mean of all others, and could not be told apart.
    Why: a new token has a row in the embeddings and one in the head. An adapter leaves both frozen, and so does
    model.frozen. Byte models, image tasks and your own code have no tokenizer.
    Instead: with an adapter, list the embeddings and the head in model.modules_to_save; otherwise leave the keys empty.
    Source: https://huggingface.co/docs/peft/developer_guides/lora (modules to save)
    """
    keys = [key for key in ("data.special_tokens", "data.added_tokens") if plan.get(key) is not None]
    if not keys:
        return
    fix = remedy("leave {key} empty", dict.fromkeys(keys), key=", ".join(keys))
    if not tasks.of(plan).from_hub or project.reads_bytes:
        yield violation(
            "{key} is {tokens}, but the model {model} of the task {task} has no tokenizer",
            fix,
            key=keys[0],
            tokens=str(plan.get(keys[0])),
            model=plan.model.name,
            task=plan.task,
        )
        return
    names = _ends(plan, project)
    if project.new_tokens and plan.model.adapter != "none" and not plan.model.modules_to_save:
        yield violation(
            "{tokens}: new to the tokenizer of {model}, but the adapter does not train embeddings and head",
            remedy("set model.modules_to_save to {names}", {"model.modules_to_save": names}, names=names),
            tokens=", ".join(project.new_tokens),
            model=plan.model.name,
        )
    frozen = [part for part in (plan.model.frozen or "").split(",") if part and _covers(part, names)]
    if project.new_tokens and plan.model.adapter == "none" and frozen:
        yield violation(
            "{tokens}: new to the tokenizer of {model}, but model.frozen contains {part}, which freezes their rows",
            remedy("remove {part} from model.frozen", part=frozen[0]),
            tokens=", ".join(project.new_tokens),
            model=plan.model.name,
            part=frozen[0],
        )


_EMBEDDINGS = {
    "gpt2": "wte",
    "gpt_bigcode": "wte",
    "gpt_neo": "wte",
    "gptj": "wte",
    "gpt_neox": "embed_in,embed_out",
    **dict.fromkeys(("bloom", "falcon", "bert", "roberta", "xlm-roberta", "electra", "distilbert"), "word_embeddings"),
}
"""What families call their embeddings, and their head where it is no lm_head; of the others they are embed_tokens."""


def _ends(plan: Plan, project: Project) -> str:
    """The modules with rows for tokens, as model.modules_to_save names them."""
    shape = project.model.transformer if project.model else None
    names = _EMBEDDINGS.get(shape.model_type if shape else "", "embed_tokens")
    return names if "," in names or not tasks.of(plan).generative else f"{names},lm_head"


def _covers(part: str, names: str) -> bool:
    return any(fnmatchcase(f"model.{name}.weight", f"*{part.strip()}*") for name in names.split(","))


@rule("TW553", level=Level.ERROR, field="data.packing")
def packed_documents_need_a_mask(plan: Plan, machine: Machine, project: Project) -> Violations:
    """Documents can share a row only if the model accepts a mask for each pair of tokens and passes nothing around it.

    Without it: every rank loads the model, and stops with `cannot keep packed documents apart`. Older scripts stop at
    the first update, with `The size of tensor a (4096) must match the size of tensor b (64)`, or let documents attend
    to each other.
    Why: Mamba's states, convolutions and some position encodings cover the whole row. Older versions of transformers
    create the masks of some families themselves, for whole rows.
    Instead: set data.packing to false. If the version is the reason, upgrade transformers; Colossal-AI 0.5 needs
    4.51.
    Source: 34 families with transformers 4.51.3 to 5.23, 149 with 5.23: a row of two documents against each alone
    """
    if plan.data.packing and tasks.of(plan).packs and project.model and project.model.mixes:
        yield violation(
            "data.packing is true, but documents of {kind} in the same row would attend to each other",
            setting("data.packing", False),
            kind=project.model.mixes,
        )
        return
    preset = tasks.of(plan).transformer(plan.model.name)
    shape = preset.transformer if preset else project.model.transformer if project.model else None
    kind = shape.model_type if shape else ""
    version = machine.interpreter.version("transformers") if machine.interpreter else None
    if plan.data.packing and tasks.of(plan).packs and kind and version and not takes_masks(kind, version):
        yield violation(
            "data.packing is true, but {kind} in transformers {version} cannot keep packed documents apart; this "
            "works since {since}",
            setting("data.packing", False),
            kind=kind,
            version=version,
            since=".".join(map(str, MASKS_SINCE[kind])),
        )


@rule("TW556", level=Level.ERROR, field="model.name")
def the_model_predicts_what_it_has_not_seen(plan: Plan, project: Project) -> Violations:
    """Only models that cannot see later tokens can learn to generate text.

    Without it: every rank loads the model, and stops with `sees the tokens that it would learn to predict` or `leaves
    out the encoder of its model`. Other scripts train an encoder to copy: its loss falls to 0, and it generates
    nothing.
    Why: an encoder's attention goes both ways, so it can simply read each token. BART and similar models write what
    their encoder has read, but their causal version has no encoder.
    Instead: use a model that generates text (Llama, Qwen, GPT-2, …); encoders are for the tasks text_classification,
    text_multilabel and text_regression. BERT can be a decoder: `"is_decoder": true` in its config.json.
    Source: transformers 5.23: the logits of a token with different tokens after it, 125 families
    """
    if project.model and project.model.predicts_nothing and tasks.of(plan).generative:
        yield violation(
            "model.name: {name} is an encoder, or a decoder without its encoder, and cannot learn to generate text",
            remedy("choose a model that generates text, or a task such as text_classification"),
            name=project.model.name,
        )


@rule("TW550", level=Level.ERROR, field="data.columns")
def only_conversations_have_words_for_columns(plan: Plan) -> Violations:
    """data.columns needs conversations or preferences.

    Without it: the key is ignored, and texts come from the column set in data.text_column.
    Why: documents and labeled texts have one column of texts, and another one of labels.
    Instead: remove data.columns, and set data.text_column or data.label_column.
    Source: the generated column_names.py, which exists only for conversations and preferences
    """
    if plan.data.columns is not None and not tasks.of(plan).chats:
        yield violation(
            "data.columns is {columns}, but the task {task} has neither conversations nor preferences",
            remedy("leave {key} empty", {"data.columns": None}, key="data.columns"),
            task=plan.task,
        )


@rule("TW547", level=Level.ERROR, field="data.source_weights")
def each_source_has_a_weight(plan: Plan) -> Violations:
    """data.source_weights needs a positive number for each source of data.train.

    Without it: the training stops before its first update, or the weights are ignored.
    Why: the weights are in the order of the sources. A custom task's data is what its task.py creates.
    Instead: give as many weights as there are sources, or leave data.source_weights empty.
    Source: the generated source_weights.py
    """
    if plan.data.source_weights is None:
        return
    fix = remedy("leave {key} empty", {"data.source_weights": None}, key="data.source_weights")
    names = [name for name in re.split(r",(?![^\[]*\])", plan.data.train) if name.strip()]
    weights = [float(number) for number in plan.data.source_weights.split(",")]
    if not tasks.of(plan).weighs:
        yield violation("data.source_weights is {source_weights}, but task.py loads the data of the task {task}", fix)
    elif len(weights) != len(names):
        yield violation(
            "data.source_weights has {numbers} numbers, but data.train has {sources} sources",
            fix,
            numbers=len(weights),
            sources=len(names),
        )
    elif min(weights) == 0:
        yield violation(
            "data.source_weights is {source_weights}: a source of weight 0 would not be read",
            remedy("remove the source from data.train, and its weight from data.source_weights"),
        )
