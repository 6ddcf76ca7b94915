"""The task: say what a picture shows. Data, model and loss; the loop is in train.py.

The loop divides the summed loss by the pictures of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch, however it is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

# feature: final_weights
from safetensors.torch import load_file, save_file

# end: final_weights
from torch import Tensor, nn
from torch.utils.data import Dataset

Batch = dict[str, Tensor]
Sample = tuple[Tensor, int]  # a picture (3, height, width) in bytes, and its class
IGNORED = -100  # a label that counts nothing: cross_entropy's own default
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

SHARDED_LAYERS: tuple[str, ...] = ("Block",)
"""Names of the repeated module classes: FSDP shards each of them as one unit."""


@dataclass
class TaskConfig:
    """Settings of the task; `--name value` overrides one."""

    train_data: str = "embedded"
    # feature: eval
    eval_data: str = "embedded"
    # end: eval
    image_size: int = 32  # pictures of a folder become squares of so many pixels; arrays stay as they are
    flip: bool = False  # mirror half of the training pictures; wrong for digits and letters
    # The residual network: `stages` of `blocks_per_stage`; each stage halves the picture and doubles the width.
    width: int = 16
    stages: int = 3
    blocks_per_stage: int = 1


class Pictures(Dataset[Sample]):
    """Pictures with their classes, in memory as arrays or read from files one at a time."""

    def __init__(self, config: TaskConfig, source: str, split: str) -> None:
        self.size, self.flip, self.training = config.image_size, config.flip, split == "train"
        self.files: list[Path] = []
        if source == "embedded":
            self.pictures, self.labels = embedded_digits(split)
        elif Path(source).suffix == ".npz":
            self.pictures, self.labels = arrays(source, len(class_names(config)))
        else:
            classes = class_names(config)
            found = [(file, file.parent.name) for file in sorted(Path(source).glob("*/*")) if is_picture(file)]
            if strange := sorted({name for _, name in found} - set(classes)):
                raise SystemExit(f"{source}: no such class in {config.train_data}: {', '.join(strange)}")
            self.files = [file for file, _ in found]
            self.labels = [classes.index(name) for _, name in found]
        if not self.labels:
            raise SystemExit(f"{source}: no pictures; they belong into one folder per class")

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
        """A training picture shifted by up to an eighth of its size, and mirrored where that is right.

        Everything random comes from the generator, which the loop keys by seed, epoch and index.
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
    """Pictures and classes of an .npz file."""
    pictures, labels = (np.load(source)[name] for name in ("images", "labels"))
    if pictures.dtype != np.uint8:
        raise SystemExit(f"{source}: images are {pictures.dtype}, not bytes (uint8)")
    if pictures.ndim != 3 and pictures.shape[3:] != (3,):
        raise SystemExit(f"{source}: images are {pictures.shape}, not (pictures, height, width, 3), or without the 3")
    if labels.shape != pictures.shape[:1] or not set(labels.tolist()) <= set(range(n_classes)):
        raise SystemExit(f"{source}: labels are not {len(pictures)} numbers from 0 to {n_classes - 1}")
    return pictures, labels.astype(int).tolist()


def embedded_digits(split: str) -> tuple[np.ndarray, list[int]]:
    """1797 handwritten digits of 8 × 8 pixels, which scikit-learn carries: every fifth is kept for evaluation."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    kept = (np.arange(len(digits.target)) % 5 == 4) == (split == "validation")
    return (digits.images[kept] * 15.9).astype(np.uint8), digits.target[kept].tolist()  # they are 0 … 16


def is_picture(file: Path) -> bool:
    """Whether the name is that of a picture."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def class_names(config: TaskConfig) -> list[str]:
    """The classes by number: the training folder's subfolders in order of their names, or the numbers themselves."""
    if config.train_data == "embedded":
        return [str(digit) for digit in range(10)]
    if Path(config.train_data).suffix == ".npz":
        return [str(number) for number in range(int(np.load(config.train_data)["labels"].max()) + 1)]
    return sorted({file.parent.name for file in Path(config.train_data).glob("*/*") if is_picture(file)})


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """The data to train on."""
    return Pictures(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """The data to evaluate on."""
    return Pictures(config, config.eval_data, "validation")


# end: eval
def collate(samples: list[Sample], counted: list[bool]) -> tuple[Batch, int]:
    """One micro-batch and the number of pictures that count.

    Where `counted` is false, the sample only fills up the last batch of an epoch and counts zero.
    """
    pictures, labels = zip(*samples, strict=True)
    kept = [label if counts else IGNORED for label, counts in zip(labels, counted, strict=True)]
    return {"pictures": torch.stack(pictures), "labels": torch.tensor(kept)}, sum(counted)


def norm(channels: int) -> nn.Module:
    """Group norm, not the usual batch norm.

    Batch norm looks at the other pictures of a micro-batch: the result would depend on how the batch is split over
    ranks and micro-batches, and on the pictures that only fill up the last one.
    """
    return nn.GroupNorm(min(8, channels), channels)


class Block(nn.Module):
    """Two 3 × 3 convolutions and a way around them: https://arxiv.org/abs/1512.03385, section 4.2."""

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
    """A residual network for small pictures: a 3 × 3 stem, stages of blocks, the mean over all places."""

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
        """Bytes (samples, 3, height, width) → logits (samples, classes)."""
        pictures = (pictures / 127.5 - 1).to(self.head.weight.dtype)  # DeepSpeed casts the model, not its inputs
        return self.head(self.blocks(self.stem(pictures)).mean((2, 3)))


def build_model(config: TaskConfig) -> nn.Module:
    """The network with random weights in fp32; the engine moves, casts and shards it."""
    return ResNet(config, len(class_names(config)))


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy **summed** over the pictures that count; the loop divides. A scalar in fp32."""
    return cross_entropy_sum(model(batch["pictures"]), batch["labels"])


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over the labels that count."""
    return nn.functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """What the loop adds up over all evaluation batches and ranks: the loss; per class how many, guessed, right."""
    logits, labels = model(batch["pictures"]), batch["labels"]
    counted = labels != IGNORED
    actual = nn.functional.one_hot(labels.clamp(min=0), logits.shape[1]) * counted[:, None]
    guessed = nn.functional.one_hot(logits.argmax(1), logits.shape[1]) * counted[:, None]
    numbers = torch.cat([actual.sum(0), guessed.sum(0), (actual * guessed).sum(0)])
    return torch.cat([cross_entropy_sum(logits, labels)[None], numbers])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Loss, accuracy, and macro F1 (the mean over classes that occur or are guessed) of the whole evaluation set."""
    loss, *numbers = sums
    n = len(numbers) // 3
    actual, guessed, right = numbers[:n], numbers[n : 2 * n], numbers[2 * n :]
    f1 = [2 * r / (a + g) for a, g, r in zip(actual, guessed, right, strict=True) if a + g]
    total = sum(actual)
    return {"eval_loss": loss / total, "eval_accuracy": sum(right) / total, "eval_f1": sum(f1) / len(f1)}


# end: eval
# feature: final_weights
def save_model(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """The final weights, gathered from all ranks. Load with `safetensors.torch.load_file`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")


@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 16) -> str:
    """Save some pictures beside the model, named by what it sees in them. The loop calls it on one process only."""
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
