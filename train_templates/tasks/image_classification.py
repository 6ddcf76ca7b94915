"""The task: image classification. This file says what is learned; pictures.py reads data, network.py is the model.

The loop divides the summed loss by the images of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch for any split.
"""

from __future__ import annotations

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
from labels import Classes, class_of, in_order, refuse_labels
from pictures import Batch, Sample

IGNORED = -100  # a label that does not count; the default of cross_entropy

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

    train_data: str = "embedded"  # a folder with one folder per class, a table, an .npz file; see pictures.py
    # feature: eval
    eval_data: str = "embedded"  # the same, or a part of the training data: 5%, 200
    # end: eval
    # feature: weighted
    source_weights: str = "1,1"  # each source's share of an epoch, in the order of the sources
    weigh_by: str = "samples"
    # end: weighted
    image_column: str = "image"  # of a table: the files
    label_column: str = "label"
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


def class_names(config: TaskConfig) -> Classes:
    """Return the labels of the training data in order. A label's index is its class."""
    _, labels = pictures.read(config.train_data, "train", *pictures.reading(config))
    refuse_labels(config.train_data, labels, "train", "image")
    return in_order(labels)


def load(config: TaskConfig, split: str) -> pictures.Pictures:
    """Return a dataset with the number of each picture's class."""
    classes = class_names(config)
    numbers = {name: i for i, name in enumerate(classes)}

    def numbered(source: str, labels: list[Any], split: str) -> list[int]:
        refuse_labels(source, labels, split, "image")
        if strange := sorted({class_of(label) for label in labels} - numbers.keys()):
            raise SystemExit(f"{source}: no such class in {config.train_data}: {', '.join(strange[:5])}")
        return [numbers[class_of(label)] for label in labels]

    return pictures.load(config, split, numbered, classes)


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
    kept = [label if counts else IGNORED for label, counts in zip(labels, counted, strict=True)]
    return {"pictures": torch.stack(images), "labels": torch.tensor(kept)}, sum(counted)


def build_model(config: TaskConfig) -> nn.Module:
    """Return the network with an output for each class, in fp32. The engine moves, casts and shards it."""
    names = class_names(config)
    return network.build(config, len(names), names)


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy **summed** over the images that count, a scalar in fp32. The loop divides it."""
    return cross_entropy_sum(model(batch["pictures"]), batch["labels"])


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over the labels that count."""
    return nn.functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: the loss, and per class the numbers of actual, predicted and correct samples."""
    logits, labels = model(batch["pictures"]), batch["labels"]
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
    """Return logits and label of each image (samples, classes + 1). The loop gathers them over batches and ranks."""
    return torch.cat([model(batch["pictures"]).float(), batch["labels"][:, None]], 1)


def evaluation_metrics(outputs: Tensor) -> dict[str, float]:
    """Return loss, accuracy, macro F1 and AUC of the whole evaluation set, each sample once."""
    return scores.classification(outputs[:, :-1], outputs[:, -1].long())


# end: gathered
def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with the class names."""
    names = class_names(config)
    network.save(config, weights, folder, len(names), class_names=names)


# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 16) -> str:
    """Save some images beside the model, named by their predicted classes. The loop calls this on one process only."""
    names = class_names(config)
    model, data = network.saved(config, folder, len(names)), load(config, "train")
    return pictures.show(data, model, folder, count, lambda x: names[x if isinstance(x, int) else int(x.argmax())])


# end: final_weights
