"""The task: any number of labels for each image. This file says what is learned; pictures.py reads the data.

The loop divides the summed loss by the images of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch for any split.
"""

from __future__ import annotations

# feature: final_weights
import functools

# end: final_weights
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import multilabel
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
    # feature: weighted
    source_weights: str = "1,1"  # each source's share of an epoch, in the order of the sources
    weigh_by: str = "samples"
    # end: weighted
    image_column: str = "image"  # of a table: the files
    label_column: str = "label"  # labels separated by | or ; or , or several columns of 0 and 1: cat,dog
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


def embedded_words(labels: list[int]) -> list[Any]:
    """Return the labels of the embedded digits."""
    facts = {"even": {0, 2, 4, 6, 8}, "large": {5, 6, 7, 8, 9}, "round": {0, 6, 8, 9}}
    return [[name for name, digits in facts.items() if digit in digits] for digit in labels]


def classes_of(config: TaskConfig) -> multilabel.Classes:
    """Return the classes of the training data."""
    _, labels = pictures.read(config.train_data, "train", *pictures.reading(config))
    if config.train_data == "embedded":
        return multilabel.classes_of("embedded", embedded_words(labels), "")
    return multilabel.classes_of(config.train_data, labels, config.label_column)


def load(config: TaskConfig, split: str) -> pictures.Pictures:
    """Return a dataset with a row of 0 and 1 for each picture, one for each class."""
    classes = classes_of(config)

    def flags_of(source: str, labels: list[Any], split: str) -> Sequence[list[int]]:
        words = embedded_words(labels) if source == "embedded" else labels
        return multilabel.flags_of(classes, source, words, split)

    return pictures.load(config, split, flags_of, classes.names)


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
    names = classes_of(config).names
    return network.build(config, len(names), names)


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss **summed** over the images that count, a scalar in fp32. The loop divides it."""
    return multilabel.losses_of(model(batch["pictures"]), batch).sum()


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: samples, loss, faultless ones, and per class the actual, predicted and correct."""
    return multilabel.evaluation_sums(model(batch["pictures"]), batch)


evaluation_metrics = multilabel.evaluation_metrics  # of the whole evaluation set, from the sums over it


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
    names = classes_of(config).names
    network.save(config, weights, folder, len(names), class_names=names)


# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 16) -> str:
    """Save some images beside the model, named by their predicted labels. The loop calls this on one process only."""
    names = classes_of(config).names
    model, data = network.saved(config, folder, len(names)), load(config, "train")
    return pictures.show(data, model, folder, count, functools.partial(multilabel.shown, names))


# end: final_weights
