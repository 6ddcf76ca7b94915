"""A transformer that continues time series, which come from a stream without an index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import IterableDataset

Batch = dict[str, Any]
SHARDED_LAYERS: tuple[str, ...] = ("TransformerEncoderLayer",)


@dataclass
class TaskConfig:
    """Settings of the task."""

    n_samples: int = 21
    stated: bool = True  # whether the stream says how long it is
    width: int = 16
    length: int = 12


class Waves(IterableDataset[Tensor]):
    """Sine waves, others in each epoch."""

    def __init__(self, config: TaskConfig) -> None:
        self.config, self.epoch = config, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.epoch)
        for _ in range(self.config.n_samples if self.config.stated else 10**9):
            speed, start = torch.rand(2, generator=generator).tolist()
            yield torch.sin(6 * start + (0.2 + speed) * torch.arange(self.config.length + 1))

    def augment(self, sample: Tensor, generator: torch.Generator) -> Tensor:
        return sample + 0.05 * torch.randn(sample.shape, generator=generator)


class StatedWaves(Waves):
    """The same with a length."""

    def __len__(self) -> int:
        return self.config.n_samples


def load_train_data(config: TaskConfig) -> IterableDataset[Any]:
    return StatedWaves(config) if config.stated else Waves(config)


def load_eval_data(config: TaskConfig) -> IterableDataset[Any]:
    return StatedWaves(config)


def collate(samples: list[Tensor], counted: list[bool]) -> tuple[Batch, int]:
    waves = torch.stack(samples)
    batch = {"past": [waves[:, :-1]], "next": waves[:, 1:], "weights": torch.tensor(counted).float()}
    return batch, sum(counted) * (waves.shape[1] - 1)


class Forecaster(nn.Module):
    """A causal transformer over values."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.embed = nn.Linear(1, config.width)
        self.places = nn.Parameter(0.1 * torch.randn(config.length, config.width))
        self.layer = nn.TransformerEncoderLayer(config.width, 2, 2 * config.width, 0.0, batch_first=True)
        self.head = nn.Linear(config.width, 1)

    def forward(self, past: Tensor) -> Tensor:
        """Shapes: (samples, length) → (samples, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(past.shape[1], device=past.device)
        return self.head(self.layer(self.embed(past[..., None]) + self.places, src_mask=mask)).squeeze(-1)


def build_model(config: TaskConfig) -> nn.Module:
    return Forecaster(config)


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    errors = model(batch["past"][0]).float() - batch["next"]
    return (errors.square() * batch["weights"][:, None]).sum()


def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    return torch.stack((loss_sum(model, batch), batch["weights"].sum() * batch["next"].shape[1]))


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    loss, count = sums
    return {"eval_loss": loss / count}


def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
