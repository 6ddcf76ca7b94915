"""The task: any number of labels for each image. This file says what is learned; pictures.py reads the data.

The loop divides the summed loss by the images of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch for any split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import network
import pictures

# feature: gathered
import scores

# end: gathered
from pictures import Batch, Sample

# feature: preset_model
SHARDED_LAYERS: tuple[str, ...] = ("Block",)
"""Names of the repeated module classes. FSDP shards each such module as one unit."""
# end: preset_model
# feature: named_model
SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that network.py names (`_no_split_modules`)."""
# end: named_model


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"  # a table or an .npz file; see pictures.py
    # feature: eval
    eval_data: str = "embedded"  # the same, or a part of the training data: 5%, 200
    # end: eval
    image_column: str = "image"  # of a table: the files
    label_column: str = "label"  # labels with | or ; or , between; or several columns of 0 and 1: cat,dog
    max_rows: int = 0  # pictures that are read of each source; 0: all
    image_size: int = 32  # images from files are resized to squares of this size; arrays are not resized
    # feature: named_model
    model_name: str = "timm/resnet18.a1_in1k"
    # end: named_model
    # feature: preset_model
    # The residual network: `stages` of `blocks_per_stage`. Each further stage halves the image and doubles the width.
    width: int = 16
    stages: int = 3
    blocks_per_stage: int = 1
    # end: preset_model


FLAGS = {"0", "1", "0.0", "1.0", "False", "True"}


def are_flags(config: TaskConfig, labels: list[Any]) -> bool:
    """Return whether the labels are rows of 0 and 1, one for each class, and not lists of classes."""
    if "," in config.label_column:
        return True
    if not all(isinstance(label, list) and set(map(repr, label)) <= FLAGS for label in labels):
        return False
    return len({len(label) for label in labels}) == 1 and any(len(set(label)) < len(label) for label in labels)


def words_of(source: str, label: Any) -> list[str]:
    """Return the labels of an image: the members of a list, or what stands between | or ; or , in a text."""
    if isinstance(label, str):
        separator = next((mark for mark in "|;," if mark in label), "|")
        return [word.strip() for word in label.split(separator) if word.strip()]
    if isinstance(label, list) and all(isinstance(word, str | int) for word in label):
        return [str(word) for word in label]
    if isinstance(label, int):
        return [str(label)]
    raise SystemExit(f"{source}: these labels cannot be lists of classes: {label!r:.80}; write a list, or cat|dog")


def embedded_words(labels: list[int]) -> list[Any]:
    """Return what can be said of the embedded digits."""
    facts = {"even": {0, 2, 4, 6, 8}, "large": {5, 6, 7, 8, 9}, "round": {0, 6, 8, 9}}
    return [[name for name, digits in facts.items() if digit in digits] for digit in labels]


def class_names(config: TaskConfig) -> list[str]:
    """Return the class names by number: the columns of flags, their numbers, or the sorted labels."""
    _, labels = pictures.read(config.train_data, "train", *pictures.reading(config))
    if config.train_data == "embedded":
        labels = embedded_words(labels)
    if are_flags(config, labels):
        columns = config.label_column.split(",")
        return columns if len(columns) == len(labels[0]) else [str(number) for number in range(len(labels[0]))]
    names = {word for label in labels for word in words_of(config.train_data, label)}
    if not names:
        raise SystemExit(f"{config.train_data}: these labels cannot be learned: all {len(labels)} are empty")
    return sorted(names, key=lambda name: (int(name) if re.fullmatch(r"\d+", name) else -1, name))


def load(config: TaskConfig, split: str) -> pictures.Pictures:
    """Return a data set with a row of 0 and 1 for each picture, one for each class."""
    names = class_names(config)
    _, known = pictures.read(config.train_data, "train", *pictures.reading(config))
    by_flags = config.train_data != "embedded" and are_flags(config, known)

    def flags_of(source: str, labels: list[Any], split: str) -> Sequence[list[int]]:
        if source == "embedded":
            labels = embedded_words(labels)
        if by_flags:
            right = [
                isinstance(row, list) and len(row) == len(names) and set(map(repr, row)) <= FLAGS for row in labels
            ]
            if wrong := [row for row, fits in zip(labels, right, strict=True) if not fits]:
                raise SystemExit(f"{source}: these labels cannot be flags of {len(names)} classes: {wrong[0]!r:.80}")
            found = labels
        else:
            words = [words_of(source, label) for label in labels]
            if strange := sorted({word for row in words for word in row} - {*names}):
                raise SystemExit(f"{source}: no such class in {config.train_data}: {', '.join(strange[:5])}")
            found = [[int(name in row) for name in names] for row in words]
        if split == "train" and all(row == found[0] for row in found):
            raise SystemExit(f"{source}: these labels cannot be learned: all {len(found)} are alike")
        return found

    return pictures.load(config, split, flags_of)


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """Return the training data."""
    return load(config, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """Return the evaluation data, or the part of the training data that is kept for it."""
    return load(config, "validation")


# end: eval
def collate(samples: list[Sample], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch and the number of images that count.

    A sample whose `counted` is false only pads the last batch of an epoch and counts zero.
    """
    images, labels = zip(*samples, strict=True)
    flags = torch.tensor(labels, dtype=torch.float32)
    return {"pictures": torch.stack(images), "labels": flags, "counted": torch.tensor(counted)}, sum(counted)


def build_model(config: TaskConfig) -> nn.Module:
    """Return the network with an output for each class, in fp32. The engine moves, casts and shards it."""
    return network.build(config, len(class_names(config)))


def losses_of(logits: Tensor, batch: Batch) -> Tensor:
    """Return the binary cross-entropy of each image, a mean over the classes; 0 where it does not count."""
    each = nn.functional.binary_cross_entropy_with_logits(logits.float(), batch["labels"], reduction="none")
    return each.mean(1) * batch["counted"]


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss **summed** over the images that count, a scalar in fp32. The loop divides it."""
    return losses_of(model(batch["pictures"]), batch).sum()


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: samples, loss, those without a mistake, and per class the actual, guessed and right."""
    logits, counted = model(batch["pictures"]), batch["counted"]
    actual, guessed = batch["labels"] * counted[:, None], (logits > 0) * counted[:, None]
    exact = (((logits > 0) == (batch["labels"] > 0)).all(1) * counted).sum()
    numbers = torch.cat([actual.sum(0), guessed.sum(0), (actual * guessed).sum(0)])
    return torch.cat([torch.stack([counted.sum(), losses_of(logits, batch).sum(), exact]), numbers])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return the loss, how often all labels are right, and macro and micro F1, from the sums."""
    count, loss, exact, *numbers = sums
    n = len(numbers) // 3
    actual, guessed, right = numbers[:n], numbers[n : 2 * n], numbers[2 * n :]
    f1 = [2 * r / (a + g) for a, g, r in zip(actual, guessed, right, strict=True) if a + g]
    both = sum(actual) + sum(guessed)
    return {
        "eval_loss": loss / count,
        "eval_accuracy": exact / count,
        "eval_f1": sum(f1) / len(f1) if f1 else 0.0,
        "eval_f1_micro": 2 * sum(right) / both if both else 0.0,
    }


# end: summed
# feature: gathered
def evaluation_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Return logits and labels of each image (samples, 2 x classes). The loop gathers them over batches and ranks."""
    return torch.cat([model(batch["pictures"]).float(), batch["labels"]], 1)


def evaluation_metrics(outputs: Tensor) -> dict[str, float]:
    """Return loss, accuracy, F1 and AUC of the whole evaluation set, each sample once."""
    return scores.several_labels(*outputs.chunk(2, 1))


# end: gathered
def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with the class names."""
    names = class_names(config)
    network.save(config, weights, folder, len(names), class_names=names)


# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 16) -> str:
    """Save some images beside the model, named by their predicted labels. The loop calls this on one process only."""
    names = class_names(config)
    model, data = network.saved(config, folder, len(names)), load(config, "train")

    def words(values: Any) -> str:
        return "+".join(name for name, value in zip(names, values, strict=True) if value > 0) or "none"

    return pictures.show(data, model, folder, count, words)


# end: final_weights
