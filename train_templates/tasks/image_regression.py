"""The task: a number for each image. This file says what is learned; pictures.py reads data, network.py is the model.

The loop divides the summed loss by the images of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch for any split. Labels are learned as they are: scale large ones to about -1 … 1.
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


def numbers_of(source: str, labels: list[Any], split: str) -> list[float]:
    """Return the labels as numbers (embedded digits / 10). Exit if one is not a number, or if all are equal."""
    for number, label in enumerate(labels, start=1):
        if isinstance(label, bool) or not isinstance(label, int | float) or not abs(label) < 3e38:
            raise SystemExit(
                f"{source}: these labels cannot be numbers: image {number} of {len(labels)} has {label!r:.80}; classes "
                "are learned by the task image_classification"
            )
    if len(set(labels)) == 1 and split == "train":
        raise SystemExit(f"{source}: these labels cannot be learned: all {len(labels)} are {labels[0]!r}")
    return [label / 10 if source == "embedded" else float(label) for label in labels]


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """Return the training data."""
    return pictures.load(config, "train", numbers_of)


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """Return the evaluation data, or the part of the training data that is kept for it."""
    return pictures.load(config, "validation", numbers_of)


# end: eval
def collate(samples: list[Sample], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch and the number of images that count.

    A sample whose `counted` is false only pads the last batch of an epoch and counts zero.
    """
    images, labels = zip(*samples, strict=True)
    numbers = torch.tensor(labels, dtype=torch.float32)
    return {"pictures": torch.stack(images), "labels": numbers, "counted": torch.tensor(counted)}, sum(counted)


def build_model(config: TaskConfig) -> nn.Module:
    """Return the network with one output, in fp32. The engine moves, casts and shards it."""
    return network.build(config, 1)


def errors(model: nn.Module, batch: Batch) -> Tensor:
    """Return prediction minus label (samples) in fp32, 0 where a sample does not count."""
    return (model(batch["pictures"]).float()[:, 0] - batch["labels"]) * batch["counted"]


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the squared error **summed** over the images that count, a scalar in fp32. The loop divides it."""
    return errors(model, batch).square().sum()


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over the images that count: 1, label, its square, and squared and absolute error, in fp64."""
    error, counted = errors(model, batch).double(), batch["counted"]
    label = batch["labels"].double() * counted
    return torch.stack([counted.sum(), label.sum(), label.square().sum(), error.square().sum(), error.abs().sum()])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return the mean squared and the mean absolute error, and R² (0 where all labels are the same number)."""
    count, labels, squares, squared, absolute = sums
    spread = squares - labels**2 / count  # only rounding errors remain, if all labels are the same number
    r2 = 1 - squared / spread if spread > 1e-12 * squares else 0.0
    return {"eval_loss": squared / count, "eval_mae": absolute / count, "eval_r2": r2}


# end: summed
# feature: gathered
def evaluation_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Return prediction and label of each image (samples, 2). The loop gathers them over batches and ranks."""
    return torch.stack([model(batch["pictures"]).float()[:, 0], batch["labels"]], 1)


def evaluation_metrics(outputs: Tensor) -> dict[str, float]:
    """Return errors, R² and correlations of the whole evaluation set, each sample once."""
    return scores.regression(outputs[:, 0], outputs[:, 1])


# end: gathered
def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks."""
    network.save(config, weights, folder, 1)


# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 16) -> str:
    """Save some images beside the model, named by their predicted numbers. The loop calls this on one process only."""
    model, data = network.saved(config, folder, 1), pictures.load(config, "train", numbers_of)
    return pictures.show(data, model, folder, count, lambda number: f"{float(number):.3g}")


# end: final_weights
