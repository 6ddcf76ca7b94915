"""A diffusion model: a small UNet that predicts the noise, whose samples carry their own noise and time step."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from shapes.pictures import SIZE, squares  # a package of the user's own, beside task.py
from torch import Tensor, nn
from torch.utils.data import Dataset

Batch = dict[str, Tensor]
SHARDED_LAYERS: tuple[str, ...] = ("Block",)
STEPS = 20
KEPT = torch.linspace(0.99, 0.9, STEPS).cumprod(0)
"""The share of the picture's variance that is left after each step."""


@dataclass
class TaskConfig:
    """Settings of the task."""

    n_samples: int = 21
    width: int = 8


class Noisy(Dataset[Any]):
    """Pictures, with noise added anew in each epoch."""

    def __init__(self, config: TaskConfig, seed: int) -> None:
        self.pictures = squares(config.n_samples, seed)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        return self.pictures[index]

    def augment(self, sample: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, int]:
        step = int(torch.randint(STEPS, (), generator=generator))
        noise = torch.randn(sample.shape, generator=generator)
        return KEPT[step].sqrt() * sample + (1 - KEPT[step]).sqrt() * noise, noise, step


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    return Noisy(config, seed=0)


def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    return Noisy(config, seed=1)


def collate(samples: list[Any], counted: list[bool]) -> tuple[Batch, int]:
    pictures, noise, steps = zip(*samples, strict=True)
    batch = {"pictures": torch.stack(pictures), "noise": torch.stack(noise), "steps": torch.tensor(steps)}
    return {**batch, "weights": torch.tensor(counted).float()}, sum(counted)


class Block(nn.Module):
    """Convolutions around the embedding of the step."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.norm, self.steps = nn.GroupNorm(4, after), nn.Embedding(STEPS, after)

    def forward(self, pictures: Tensor, steps: Tensor) -> Tensor:
        hidden = self.norm(self.first(pictures)) + self.steps(steps)[:, :, None, None]
        return self.second(nn.functional.silu(hidden))


class UNet(nn.Module):
    """Down, through the middle, and up again beside what went down."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        width = config.width
        self.down, self.middle = Block(1, width), Block(width, 2 * width)
        self.up, self.out = Block(3 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, pictures: Tensor, steps: Tensor) -> Tensor:
        """Shapes: (samples, 1, size, size) → the same."""
        down = self.down(pictures, steps)
        middle = self.middle(nn.functional.avg_pool2d(down, 2), steps)
        wide = nn.functional.interpolate(middle, size=(SIZE, SIZE))
        return self.out(self.up(torch.cat([down, wide], dim=1), steps))


class WithAverage(nn.Module):
    """The network, and the average of its weights that pictures are made with."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.average = net, copy.deepcopy(net).requires_grad_(False)

    def forward(self, pictures: Tensor, steps: Tensor) -> Tensor:
        return (self.net if self.training else self.average)(pictures, steps)


def build_model(config: TaskConfig) -> nn.Module:
    return WithAverage(UNet(config))


def after_update(config: Any, model: Any, update: int) -> None:
    decay = min(0.99, update / (update + 2))
    for average, weight in zip(model.average.parameters(), model.net.parameters(), strict=True):
        average.lerp_(weight, 1 - decay)


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    errors = model(batch["pictures"], batch["steps"]).float() - batch["noise"]
    return (errors.square().mean((1, 2, 3)) * batch["weights"]).sum()


def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    return torch.stack((loss_sum(model, batch), batch["weights"].sum()))


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    loss, count = sums
    return {"eval_loss": loss / count}


def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
