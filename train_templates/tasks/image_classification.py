"""The task: image classification. This file holds data, model and loss; the loop is in train.py.

The loop divides the summed loss by the images of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch for any split.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

# feature: final_weights
from safetensors.torch import load_file

# end: final_weights
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

# feature: gathered
import scores

# end: gathered
Batch = dict[str, Tensor]
Sample = tuple[Tensor, int]  # an image (3, height, width) as uint8, and its class
IGNORED = -100  # a label that does not count; the default of cross_entropy
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

SHARDED_LAYERS: tuple[str, ...] = ("Block",)
"""Names of the repeated module classes. FSDP shards each such module as one unit."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"
    # feature: eval
    eval_data: str = "embedded"
    # end: eval
    image_size: int = 32  # images from files are resized to squares of this size; arrays are not resized
    flip: bool = False  # mirror half of the training images; wrong for digits and letters
    # The residual network: `stages` of `blocks_per_stage`. Each further stage halves the image and doubles the width.
    width: int = 16
    stages: int = 3
    blocks_per_stage: int = 1


class Pictures(Dataset[Sample]):
    """Images with their classes, in memory as arrays or read from files one at a time."""

    def __init__(self, config: TaskConfig, source: str, split: str) -> None:
        self.size, self.flip, self.training = config.image_size, config.flip, split == "train"
        self.files: list[Path] = []
        if source == "embedded":
            self.pictures, self.labels = embedded_digits(split)
        elif Path(source).suffix == ".npz":
            self.pictures, self.labels = arrays(source, len(class_names(config)))
        else:
            classes = class_names(config)
            found = [(file, file.parent.name) for file in sorted(part(source, split).glob("*/*")) if is_picture(file)]
            if strange := sorted({name for _, name in found} - set(classes)):
                raise SystemExit(f"{source}: no such class in {config.train_data}: {', '.join(strange)}")
            self.files = [file for file, _ in found]
            self.labels = [classes.index(name) for _, name in found]
        if not self.labels:
            raise SystemExit(f"{source}: no pictures; they belong into one folder per class")
        if self.training and len(set(self.labels)) == 1:
            only = class_names(config)[self.labels[0]]
            raise SystemExit(f"{source}: these labels cannot be classes: all {len(self.labels)} images are {only!r}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        if self.files:
            try:
                with Image.open(self.files[index]) as file:
                    pixels = np.asarray(file.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR))
            except OSError as error:
                raise type(error)(f"{error}, in {self.files[index]}") from None
        else:
            pixels = self.pictures[index]
        if pixels.ndim == 2:  # grey
            pixels = np.repeat(pixels[:, :, None], 3, axis=2)
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), self.labels[index]

    def augment(self, sample: Sample, generator: torch.Generator) -> Sample:
        """Shift a training image by up to an eighth of its size, and mirror it if `flip` is set.

        All randomness comes from the generator, which the loop seeds by seed, epoch and index.
        """
        if not self.training:
            return sample
        picture, label = sample
        _, height, width = picture.shape
        margin = max(1, height // 8)
        top, left, mirror = torch.randint(2 * margin + 1, (3,), generator=generator).tolist()
        padded = nn.functional.pad(picture, (margin,) * 4)
        picture = padded[:, top : top + height, left : left + width]
        return picture.flip(2) if self.flip and mirror > margin else picture, label


def arrays(source: str, n_classes: int) -> tuple[np.ndarray, list[int]]:
    """Return the images and classes of an .npz file."""
    pictures, labels = (np.load(source)[name] for name in ("images", "labels"))
    if pictures.dtype != np.uint8:
        raise SystemExit(f"{source}: images are {pictures.dtype}, not bytes (uint8)")
    if pictures.ndim != 3 and pictures.shape[3:] != (3,):
        raise SystemExit(f"{source}: images are {pictures.shape}, not (pictures, height, width, 3), or without the 3")
    if labels.ndim == 2:
        raise SystemExit(f"{source}: these labels cannot be classes: image 1 has {labels[0]}; store labels.argmax(1)")
    if (fractions := labels[labels % 1 != 0]).size:
        raise SystemExit(
            f"{source}: these labels cannot be classes: {fractions.size} of {labels.size} are fractions, such as "
            f"{fractions[0]}; store whole numbers from 0"
        )
    if labels.shape != pictures.shape[:1] or not set(labels.tolist()) <= set(range(n_classes)):
        raise SystemExit(f"{source}: labels are not {len(pictures)} numbers from 0 to {n_classes - 1}")
    return pictures, labels.astype(int).tolist()


def embedded_digits(split: str) -> tuple[np.ndarray, list[int]]:
    """Return scikit-learn's 1797 handwritten digits of 8 × 8 pixels. Every fifth is for evaluation."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    kept = (np.arange(len(digits.target)) % 5 == 4) == (split == "validation")
    return (digits.images[kept] * 15.9).astype(np.uint8), digits.target[kept].tolist()  # values are 0 … 16


PARTS = {"train": ("train", "training"), "validation": ("val", "valid", "validation", "dev", "test", "testing")}
"""Names of folders that split the images, not classes."""


def part(source: str, split: str) -> Path:
    """Return the folder with one folder per class: the source, or its part for training or evaluation."""
    folder = Path(source)
    inside = {entry.name.lower(): entry for entry in folder.iterdir() if entry.is_dir()} if folder.is_dir() else {}
    if not inside.keys() & set(PARTS["train"]) or not inside.keys() <= {*PARTS["train"], *PARTS["validation"]}:
        return folder
    found = next((inside[name] for name in PARTS[split] if name in inside), None)
    if found is None:
        raise SystemExit(
            f"{source}: it holds {', '.join(sorted(inside))}, but no images to evaluate on, such as in val"
        )
    return found


def is_picture(file: Path) -> bool:
    """Return whether the name is that of an image."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def class_names(config: TaskConfig) -> list[str]:
    """Return the class names by number: the sorted subfolders of the training folder, or the numbers themselves."""
    if config.train_data == "embedded":
        return [str(digit) for digit in range(10)]
    if Path(config.train_data).suffix == ".npz":
        return [str(number) for number in range(int(np.load(config.train_data)["labels"].max()) + 1)]
    return sorted({file.parent.name for file in part(config.train_data, "train").glob("*/*") if is_picture(file)})


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """Return the training data."""
    return Pictures(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """Return the evaluation data."""
    return Pictures(config, config.eval_data, "validation")


# end: eval
def collate(samples: list[Sample], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch and the number of images that count.

    A sample whose `counted` is false only pads the last batch of an epoch and counts zero.
    """
    pictures, labels = zip(*samples, strict=True)
    kept = [label if counts else IGNORED for label, counts in zip(labels, counted, strict=True)]
    return {"pictures": torch.stack(pictures), "labels": torch.tensor(kept)}, sum(counted)


def norm(channels: int) -> nn.Module:
    """Return a group norm, not the usual batch norm.

    Batch norm depends on the other images of a micro-batch, so the result would depend on how the batch is split over
    ranks and micro-batches, and on the images that only pad the last one.
    """
    return nn.GroupNorm(min(8, channels), channels)


class Block(nn.Module):
    """Two 3 × 3 convolutions with a residual connection: https://arxiv.org/abs/1512.03385, section 4.2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = norm(after), norm(after)
        same = before == after and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Shapes: (samples, before, height, width) → (samples, after, height / stride, width / stride)."""
        hidden = self.first_norm(self.first(pictures)).relu()
        return (self.second_norm(self.second(hidden)) + self.around(pictures)).relu()


class ResNet(nn.Module):
    """A residual network for small images: a 3 × 3 stem, stages of blocks, the mean over all places, and a head."""

    def __init__(self, config: TaskConfig, n_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, config.width, 3, padding=1, bias=False), norm(config.width), nn.ReLU())
        blocks, before = [], config.width
        for stage in range(config.stages):
            after = config.width * 2**stage
            for block in range(config.blocks_per_stage):
                blocks.append(Block(before, after, stride=2 if stage > 0 and block == 0 else 1))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, n_classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Shapes: uint8 (samples, 3, height, width) → logits (samples, classes)."""
        pictures = (pictures / 127.5 - 1).to(self.head.weight.dtype)  # DeepSpeed casts the model, not its inputs
        return self.head(self.blocks(self.stem(pictures)).mean((2, 3)))


def build_model(config: TaskConfig) -> nn.Module:
    """Return the network with random weights in fp32. The engine moves, casts and shards it."""
    return ResNet(config, len(class_names(config)))


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy **summed** over the images that count, a scalar in fp32. The loop divides it."""
    return cross_entropy_sum(model(batch["pictures"]), batch["labels"])


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over the labels that count."""
    return nn.functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


# feature: summed
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: the loss, and per class the numbers of actual, guessed and right samples."""
    logits, labels = model(batch["pictures"]), batch["labels"]
    counted = labels != IGNORED
    actual = nn.functional.one_hot(labels.clamp(min=0), logits.shape[1]) * counted[:, None]
    guessed = nn.functional.one_hot(logits.argmax(1), logits.shape[1]) * counted[:, None]
    numbers = torch.cat([actual.sum(0), guessed.sum(0), (actual * guessed).sum(0)])
    return torch.cat([cross_entropy_sum(logits, labels)[None], numbers])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return loss, accuracy, and macro F1 (the mean over classes that occur or are guessed) from the sums."""
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
    """Save the final weights, gathered from all ranks, and beside them the class names and the network's settings."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    shape = {name: getattr(config, name) for name in ("image_size", "width", "stages", "blocks_per_stage")}
    (folder / "config.json").write_text(json.dumps({"class_names": class_names(config), **shape}, indent=1))


# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 16) -> str:
    """Save some images beside the model, named by their predicted classes. The loop calls this on one process only."""
    model = build_model(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    data, names = load_train_data(config), class_names(config)
    shown = folder.parent / "pictures"
    shown.mkdir(exist_ok=True)
    for i in range(min(count, len(data))):
        picture, label = data[i]
        seen = names[int(model.float()(picture[None]).argmax())]
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(shown / f"{i:02}-{names[label]}-seen-as-{seen}.png")
    return f"pictures with what the model sees in them: {shown}"


# end: final_weights
