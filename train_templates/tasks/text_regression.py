"""The task: a number for each text. This file holds data, model and loss; texts.py reads texts, train.py is the loop.

The loop divides the summed loss by the texts of the whole real batch, over all micro-batches and ranks, so the gradient
is that of one big batch for any split. Labels are learned as they are: scale large ones to about -1 … 1 before.
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
from texts import Batch, Labeled, Sample, Texts, Tokens, build_encoder, embedded_paragraphs, padded, read, reading

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
    """Return the texts of a dataset with their numbers."""
    if source == "embedded":
        return [one._replace(label=symbols(one.text)) for one in embedded_paragraphs(split)]
    found = read(source, split, text_column, label_column, max_rows)
    for number, label in enumerate((one.label for one in found), start=1):
        if isinstance(label, bool) or not isinstance(label, int | float) or not abs(label) < 3e38:
            raise SystemExit(f"{source}: sample {number}: the label is {label!r}, not a finite number")
    return [one._replace(label=float(one.label)) for one in found]


def symbols(text: str) -> float:
    """Return the share of characters that are neither letters nor spaces, the label of an embedded paragraph."""
    return sum(not (character.isalpha() or character.isspace()) for character in text) / len(text)


def load(config: TaskConfig, source: str, split: str, evaluation: bool = False) -> Dataset[Any]:
    """Return a dataset with the number of each text."""
    texts = labeled(source, split, *reading(config))
    # feature: eval
    if is_part(config.eval_data):
        texts = part_of(texts, config.eval_data, evaluation=evaluation)
    # end: eval
    return Texts(
        config,
        [one.text for one in texts],
        [one.label for one in texts],
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


def build_model(config: TaskConfig) -> nn.Module:
    """Return the model with a head for one number, in fp32. The engine moves, casts and shards it."""
    return build_encoder(config, num_labels=1, problem_type="regression")


def errors(model: nn.Module, batch: Batch) -> Tensor:
    """Return prediction minus label (samples) in fp32, 0 where a sample does not count."""
    predicted = model(batch["inputs"], batch["mask"]).float()[:, 0]
    return (predicted - batch["labels"]) * batch["counted"]


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the squared error **summed** over the texts that count, a scalar in fp32. The loop divides it."""
    return errors(model, batch).square().sum()


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over the texts that count: 1, label, its square, and squared and absolute error, in fp64."""
    error, counted = errors(model, batch).double(), batch["counted"]
    label = batch["labels"].double() * counted
    return torch.stack([counted.sum(), label.sum(), label.square().sum(), error.square().sum(), error.abs().sum()])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return the mean squared and the mean absolute error, and R² (1 - squared error / variance of the labels)."""
    count, label, label_squared, squared, absolute = sums
    spread = label_squared - label * label / count
    r2 = 1 - squared / spread if spread > 0 else 0.0
    return {"eval_loss": squared / count, "eval_mae": absolute / count, "eval_r2": r2}


# end: summed
# feature: gathered
def evaluation_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Return prediction and label of each text (samples, 2) in fp32. The loop gathers them over batches and ranks."""
    predicted = model(batch["inputs"], batch["mask"]).float()[:, 0]
    return torch.stack([predicted, batch["labels"]], 1)


def evaluation_metrics(outputs: Tensor) -> dict[str, float]:
    """Return errors, R² and correlations over the whole evaluation set, each text once."""
    return scores.regression(*outputs.unbind(1))


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
    model = adapter.load(folder, num_labels=1).eval()
    # end: lora
    tokens, texts = Tokens(config), labeled(config.train_data, "train", *reading(config))
    lines = []
    for text, label, _ in texts[:: max(1, len(texts) // count)][:count]:
        predicted = float(model(input_ids=torch.tensor([tokens.encode(text)])).logits)
        lines.append(f"{label:.4g}, predicted {predicted:.4g}: {text[:80]}")
    return "\n".join(lines)


# end: final_weights
