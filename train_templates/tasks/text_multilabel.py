"""The task: any number of labels for each text. This file says what is learned; texts.py reads texts.

The loop divides the summed loss by the texts of the whole real batch, over all micro-batches and ranks, so the gradient
is that of one big batch for any split.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from pathlib import Path
from typing import Any

import torch

# feature: final_weights
# feature: whole_model
import transformers

# end: whole_model
# end: final_weights
from torch import Tensor, nn
from torch.utils.data import Dataset

# feature: lora
import adapter

# end: lora
# feature: whole_model
import model_folder

# end: whole_model
import multilabel

# feature: gathered
import scores

# end: gathered

# feature: eval
from sources import is_part

# end: eval
# feature: final_weights
# feature: whole_model
from texts import FP32

# end: whole_model
# end: final_weights
# feature: eval
from texts import part_of, tell_repeated

# end: eval
from texts import (
    Batch,
    Labeled,
    Sample,
    Texts,
    Tokens,
    build_encoder,
    embedded_paragraphs,
    named,
    padded,
    read,
    reading,
)

SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the model from transformers names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"  # sources, as sources.py reads them
    # feature: eval
    eval_data: str = "embedded"  # the same, or a part of the training data: 5%, 200
    # end: eval
    # feature: weighted
    source_weights: str = "1,1"  # each source's share of an epoch, in the order of the sources
    weigh_by: str = "tokens"  # or samples
    # end: weighted
    text_column: str = "text"
    label_column: str = "label"  # lists (cat|dog), or several columns of 0 and 1: cat,dog
    max_rows: int = 0  # rows that are read of each source; 0: all
    sequence_length: int = 256  # longer texts are truncated
    # feature: chosen_attention
    attention: str = "sdpa"  # or eager, flash_attention_2
    # end: chosen_attention
    output_dtype: str = "source"  # dtype of the saved model: as it was loaded, or float32, bfloat16, float16
    # feature: named_model
    model_name: str = "google-bert/bert-base-uncased"
    # end: named_model
    # feature: tokenizer
    tokenizer_name: str = "google-bert/bert-base-uncased"
    # end: tokenizer
    # feature: new_tokens
    special_tokens: str = "<|im_start|>,eos_token=<|im_end|>"  # added to the tokenizer if it lacks them
    added_tokens: str = ""  # other tokens: <tool_call>,</tool_call>
    # end: new_tokens
    # feature: lora
    frozen_dtype: str = "float32"  # dtype of the weights that are not trained
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str = "all-linear"  # or module names: q_proj,v_proj
    lora_dropout: float = 0.0  # of the adapter's inputs
    lora_rslora: bool = False  # scale by alpha / sqrt(rank)
    lora_dora: bool = False  # also learn the length of each row of a matrix
    modules_to_save: str = ""  # modules that are trained in full: embeddings
    # end: lora
    # feature: preset_model
    model_type: str = "bert"
    vocab_size: int = 4096
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 256
    max_position_embeddings: int = 1024
    # end: preset_model


@functools.cache
def labeled(source: str, split: str, text_column: str, label_column: str, max_rows: int) -> list[Labeled]:
    """Return the texts of a dataset with their labels, as stored there."""
    if source == "embedded":
        return [one._replace(label=embedded_words(one.text)) for one in embedded_paragraphs(split)]
    return read(source, split, text_column, label_column, max_rows)


def embedded_words(text: str) -> list[str]:
    """Return the labels of an embedded paragraph."""
    facts = {"calls": "()" in text, "long": len(text) > 400, "names": "_" in text}
    return [name for name, holds in facts.items() if holds]


def classes_of(config: TaskConfig) -> multilabel.Classes:
    """Return the classes of the training data."""
    texts = labeled(config.train_data, "train", *reading(config))
    columns = "" if config.train_data == "embedded" else config.label_column
    return multilabel.classes_of(config.train_data, [one.label for one in texts], columns)


def load(config: TaskConfig, source: str, split: str, evaluation: bool = False) -> Dataset[Any]:
    """Return a dataset with a row of 0 and 1 for each text, one for each class."""
    texts = labeled(source, split, *reading(config))
    # feature: eval
    if is_part(config.eval_data):
        texts = part_of(texts, config.eval_data, evaluation=evaluation)
        split = "validation" if evaluation else split
    # end: eval
    classes = classes_of(config)
    flags = multilabel.flags_of(classes, source, [one.label for one in texts], split)
    return Texts(
        config,
        [one.text for one in texts],
        flags,
        classes.names,
        # feature: weighted
        sources=[one.source for one in texts] if split == "train" and not evaluation else None,
        # end: weighted
    )


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """Return the training data."""
    return load(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """Return the evaluation data, or the part of the training data that is kept for it."""
    if is_part(config.eval_data):
        return load(config, config.train_data, "train", evaluation=True)
    trained, evaluated = (
        labeled(source, split, *reading(config))
        for source, split in ((config.train_data, "train"), (config.eval_data, "validation"))
    )
    tell_repeated(config, trained, evaluated)
    return load(config, config.eval_data, "validation")


# end: eval
def collate(samples: list[Sample], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch, padded to its longest text, and the number of texts that count.

    A sample whose `counted` is false only pads the last batch of an epoch and counts zero.
    """
    labels = torch.tensor([label for _, label, _ in samples], dtype=torch.float32)
    return {**padded(samples), "labels": labels, "counted": torch.tensor(counted)}, sum(counted)


def head_of(config: TaskConfig) -> dict[str, Any]:
    """Return what the model's configuration says about its outputs. Pipelines read their meaning from it."""
    return {**named(classes_of(config).names), "problem_type": "multi_label_classification"}


def build_model(config: TaskConfig) -> nn.Module:
    """Return the model with an output for each class, in fp32. The engine moves, casts and shards it."""
    return build_encoder(config, **head_of(config))


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return logits (samples, classes) in fp32."""
    return model(batch["inputs"], batch["mask"]).float()


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss **summed** over the texts that count, a scalar in fp32. The loop divides it."""
    return multilabel.losses_of(logits_of(model, batch), batch).sum()


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: samples, loss, faultless ones, and per class the actual, predicted and correct."""
    return multilabel.evaluation_sums(logits_of(model, batch), batch)


evaluation_metrics = multilabel.evaluation_metrics  # of the whole evaluation set, from the sums over it


# end: summed
# feature: gathered
def evaluation_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Return logits and labels of each text (samples, 2 x classes). The loop gathers them over batches and ranks."""
    return torch.cat([logits_of(model, batch), batch["labels"]], 1)


def evaluation_metrics(outputs: Tensor) -> dict[str, float]:
    """Return loss, accuracy, F1 and AUC of the whole evaluation set, each text once."""
    return scores.several_labels(*outputs.chunk(2, 1))


# end: gathered
# feature: whole_model
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with all that `pipeline` and `from_pretrained` load."""
    model_folder.save(model, weights, folder, config.output_dtype, Tokens(config).tokenizer)


# end: whole_model
# feature: lora
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the adapter and the head for `adapter.load(folder)`, which also loads the base model."""
    adapter.save(model, weights, folder, config.output_dtype, Tokens(config).tokenizer)


# end: lora
# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 5) -> str:
    """Return what the trained model predicts for some texts. It is loaded from where `save_model` saved it."""
    # feature: whole_model
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, **FP32).eval()
    # end: whole_model
    # feature: lora
    model = adapter.load(folder, **head_of(config)).eval()
    # end: lora
    tokens, texts, classes = Tokens(config), labeled(config.train_data, "train", *reading(config)), classes_of(config)
    lines = []
    for text, label, _ in texts[:: max(1, len(texts) // count)][:count]:
        (flags,) = multilabel.flags_of(classes, config.train_data, [label], "sample")
        seen = model(input_ids=torch.tensor([tokens.encode(text)])).logits[0]
        said = (multilabel.shown(classes.names, values) for values in (flags, seen))
        lines.append(f"{', seen as '.join(said)}: {text[:80]}")
    return "\n".join(lines)


# end: final_weights
