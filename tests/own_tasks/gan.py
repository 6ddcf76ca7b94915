"""A generative adversarial network on points around a circle: two optimizers that take turns, and an EMA."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

Batch = dict[str, Tensor]
SHARDED_LAYERS: tuple[str, ...] = ()


@dataclass
class TaskConfig:
    """Settings of the task."""

    n_samples: int = 60
    width: int = 16
    decay: float = 0.9  # of the average of the generator's weights


class Circle(Dataset[Tensor]):
    """Points on a circle."""

    def __init__(self, config: TaskConfig, seed: int) -> None:
        angles = 6.3 * torch.rand(config.n_samples, generator=torch.Generator().manual_seed(seed))
        self.points = torch.stack([angles.sin(), angles.cos()], dim=1)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Tensor:
        return self.points[index]

    def augment(self, sample: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the generator's noise for this sample."""
        return sample, torch.randn(4, generator=generator)


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    return Circle(config, seed=0)


def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    return Circle(config, seed=1)


def collate(samples: list[tuple[Tensor, Tensor]], counted: list[bool]) -> tuple[Batch, int]:
    points, noise = zip(*samples, strict=True)
    weights = torch.tensor(counted).float()
    return {"points": torch.stack(points), "noise": torch.stack(noise), "weights": weights}, sum(counted)


def layers(*widths: int) -> nn.Sequential:
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.LeakyReLU(0.2))))[:-1]


class Gan(nn.Module):
    """Both networks, and the generator's average."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.generator = layers(4, config.width, 2)
        self.critic = layers(2, config.width, config.width, 1)
        self.average = copy.deepcopy(self.generator).requires_grad_(False)


def build_model(config: TaskConfig) -> nn.Module:
    return Gan(config)


def build_optimizers(config: Any, model: Any) -> dict[str, torch.optim.Optimizer]:
    return {
        "critic": torch.optim.Adam(model.critic.parameters(), lr=4e-3, betas=(0.5, 0.99)),
        "generator": torch.optim.SGD(model.generator.parameters(), lr=1e-2, momentum=0.9),
    }


def loss_sum(model: Any, batch: Batch, name: str = "critic") -> Tensor:
    """The non-saturating loss of one of them, summed over the samples."""
    fake = model.generator(batch["noise"])
    if name == "generator":
        losses = nn.functional.softplus(-model.critic(fake))
    else:
        losses = nn.functional.softplus(model.critic(fake.detach())) + nn.functional.softplus(
            -model.critic(batch["points"])
        )
    return (losses.squeeze(1) * batch["weights"]).sum()


def after_update(config: Any, model: Any, update: int) -> None:
    for average, weight in zip(model.average.parameters(), model.generator.parameters(), strict=True):
        average.lerp_(weight, 1 - config.decay)


def evaluation_sums(model: Any, batch: Batch) -> Tensor:
    return torch.stack((loss_sum(model, batch), batch["weights"].sum()))


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    loss, count = sums
    return {"eval_loss": loss / count}


def evaluation_outputs(model: Any, batch: Batch) -> dict[str, Tensor]:
    return {"radius": model.average(batch["noise"]).norm(dim=1), "noise": batch["noise"][:, 0]}


def metrics(outputs: dict[str, Tensor]) -> dict[str, float]:
    return {"eval_radius_median": float(outputs["radius"].median()), "eval_rows": len(outputs["noise"])}


def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
