"""The task: your own data, model and loss. The example is a small regression; replace what is marked `edit`.

The loop in train.py uses TaskConfig and these functions. It divides the summed loss by the count of the whole real
batch, over all micro-batches and ranks, so the gradient is that of one big batch for any split. hooks.py lists what
else can be decided here: parameter groups, optimizers, a schedule, averages of the weights, metrics over all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

Batch = dict[str, Tensor]

SHARDED_LAYERS: tuple[str, ...] = ("Block",)
"""Names of the repeated module classes. FSDP shards each such module as one unit."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    n_samples: int = 2048
    # feature: eval
    n_eval_samples: int = 256
    # end: eval
    n_features: int = 16
    hidden_size: int = 128
    n_blocks: int = 2
    noise: float = 0.0  # standard deviation of the noise on the inputs, drawn anew in each epoch


class Regression(Dataset[tuple[Tensor, Tensor]]):
    """edit: your data. A sample must depend only on its index, so that epochs and resumed runs see the same."""

    def __init__(self, config: TaskConfig, n_samples: int, *, seed: int) -> None:
        self.noise = config.noise
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(n_samples, config.n_features, generator=generator)
        noise = 0.01 * torch.randn(n_samples, generator=generator)
        self.targets = torch.sin(2 * self.inputs[:, 0]) + self.inputs[:, 1] * self.inputs[:, 2] + noise

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def augment(self, sample: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """edit: return the sample with all that is random about it: noise, time steps, masks, crops.

        Draw from `generator` only. It is seeded by (seed, epoch, index), so the numbers are the same for any number of
        ranks and any split of the batch. What `loss_sum` draws depends on both.
        """
        inputs, target = sample
        return inputs + self.noise * torch.randn(inputs.shape, generator=generator), target


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """Return the training data: a length, and items by index."""
    return Regression(config, config.n_samples, seed=0)


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """Return the evaluation data."""
    return Regression(config, config.n_eval_samples, seed=1)


# end: eval
def collate(samples: list[tuple[Tensor, Tensor]], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch, and the count of what its loss sums over (here: samples).

    A sample whose `counted` is false only pads the last batch of an epoch and must count zero.
    """
    inputs, targets = zip(*samples, strict=True)
    batch = {"inputs": torch.stack(inputs), "targets": torch.stack(targets), "weights": torch.tensor(counted).float()}
    return batch, sum(counted)


class Block(nn.Module):
    """A residual layer of the example model."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Shapes: (samples, hidden) → (samples, hidden)."""
        return hidden + torch.nn.functional.gelu(self.layer(hidden))


class Net(nn.Module):
    """edit: your model."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.embed = nn.Linear(config.n_features, config.hidden_size)
        self.blocks = nn.Sequential(*(Block(config.hidden_size) for _ in range(config.n_blocks)))
        self.head = nn.Linear(config.hidden_size, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Shapes: (samples, features) → (samples,)."""
        return self.head(self.blocks(self.embed(inputs))).squeeze(-1)


def build_model(config: TaskConfig) -> nn.Module:
    """Return the model on the CPU in fp32. The engine moves, casts and shards it."""
    return Net(config)


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """edit: your loss, **summed** (not averaged) over what `collate` counts, a scalar in fp32."""
    inputs = batch["inputs"].to(next(model.parameters()).dtype)  # DeepSpeed casts the model to 16 bit, not its inputs
    errors = model(inputs).float() - batch["targets"]
    return (errors.square() * batch["weights"]).sum()


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """edit: what the loop adds up over all evaluation batches and ranks: the loss and its count."""
    return torch.stack((loss_sum(model, batch), batch["weights"].sum()))


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """edit: the metrics of the whole evaluation set, from the sums over it."""
    loss, count = sums
    return {"eval_loss": loss / count}


# end: eval
def apart(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights without shared memory, which safetensors refuses: tied ones are saved under each name."""
    places: set[int] = set()
    found = {}
    for name, tensor in weights.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in places else tensor.contiguous()
        places.add(place)
    return found


def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks. `safetensors.torch.load_file` loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(apart(weights), folder / "model.safetensors")
