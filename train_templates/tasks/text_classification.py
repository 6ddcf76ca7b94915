"""The task: text classification. This file holds data, model and loss; texts.py reads texts, train.py is the loop.

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
# feature: gathered
import scores

# end: gathered

from labels import Classes, class_of, in_order, refuse_labels

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

IGNORED = -100  # a label that does not count; the default of cross_entropy
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
    label_column: str = "label"
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
    """Return the texts of a dataset with their labels."""
    if source == "embedded":
        found = list(embedded_paragraphs(split))
    else:
        found = read(source, split, text_column, label_column, max_rows)
    refuse_labels(source, [one.label for one in found], split, "text")
    return found


def class_names(config: TaskConfig) -> Classes:
    """Return the labels of the training data in order. A label's index is its class."""
    return in_order([one.label for one in labeled(config.train_data, "train", *reading(config))])


def load(config: TaskConfig, source: str, split: str, evaluation: bool = False) -> Dataset[Any]:
    """Return a dataset with the number of each text's class."""
    classes = class_names(config)
    numbers = {name: i for i, name in enumerate(classes)}
    texts = labeled(source, split, *reading(config))
    # feature: eval
    if is_part(config.eval_data):
        texts = part_of(texts, config.eval_data, evaluation=evaluation)
    # end: eval
    if strange := sorted({class_of(one.label) for one in texts} - set(numbers)):
        raise SystemExit(f"{source}: labels that {config.train_data} does not have: {', '.join(strange[:5])}")
    return Texts(
        config,
        [one.text for one in texts],
        [numbers[class_of(one.label)] for one in texts],
        classes,
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
    labels = [label if counts else IGNORED for (_, label, _), counts in zip(samples, counted, strict=True)]
    return {**padded(samples), "labels": torch.tensor(labels)}, sum(counted)


def build_model(config: TaskConfig) -> nn.Module:
    """Return the model with a head for the classes, in fp32. The engine moves, casts and shards it."""
    return build_encoder(config, **named(class_names(config)))


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return logits (samples, classes) in fp32."""
    return model(batch["inputs"], batch["mask"]).float()


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy **summed** over the texts that count, a scalar in fp32. The loop divides it."""
    return cross_entropy_sum(logits_of(model, batch), batch["labels"])


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over the labels that count."""
    return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: the loss, and per class the numbers of actual, predicted and correct samples."""
    logits, labels = logits_of(model, batch), batch["labels"]
    counted = labels != IGNORED
    actual = nn.functional.one_hot(labels.clamp(min=0), logits.shape[1]) * counted[:, None]
    guessed = nn.functional.one_hot(logits.argmax(1), logits.shape[1]) * counted[:, None]
    numbers = torch.cat([actual.sum(0), guessed.sum(0), (actual * guessed).sum(0)])
    return torch.cat([cross_entropy_sum(logits, labels)[None], numbers])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return loss, accuracy, and macro F1 (the mean over classes that occur or are predicted) from the sums."""
    loss, *numbers = sums
    n = len(numbers) // 3
    actual, guessed, right = numbers[:n], numbers[n : 2 * n], numbers[2 * n :]
    f1 = [2 * r / (a + g) for a, g, r in zip(actual, guessed, right, strict=True) if a + g]
    total = sum(actual)
    return {"eval_loss": loss / total, "eval_accuracy": sum(right) / total, "eval_f1": sum(f1) / len(f1)}


# end: summed
# feature: gathered
def evaluation_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Return logits and label of each text (samples, classes + 1). The loop gathers them over batches and ranks."""
    return torch.cat([logits_of(model, batch), batch["labels"][:, None]], 1)


def evaluation_metrics(outputs: Tensor) -> dict[str, float]:
    """Return loss, accuracy, macro F1 and AUC of the whole evaluation set, each sample once."""
    return scores.classification(outputs[:, :-1], outputs[:, -1].long())


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
    """Return how the trained model classifies some texts. It is loaded from where `save_model` saved it."""
    # feature: whole_model
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, **FP32).eval()
    # end: whole_model
    # feature: lora
    model = adapter.load(folder, **named(class_names(config))).eval()
    # end: lora
    tokens, texts = Tokens(config), labeled(config.train_data, "train", *reading(config))
    lines = []
    for text, label, _ in texts[:: max(1, len(texts) // count)][:count]:
        seen = model(input_ids=torch.tensor([tokens.encode(text)])).logits.argmax()
        lines.append(f"{label}, seen as {model.config.id2label[int(seen)]}: {text[:80]}")
    return "\n".join(lines)


# end: final_weights
