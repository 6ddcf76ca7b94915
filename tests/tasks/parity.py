"""The accelerate tutorial's ragged example as a task: sample i is the numbers 1 … i + 1, each labeled odd or even."""

from dataclasses import dataclass

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset

Batch = dict[str, torch.Tensor]
SHARDED_LAYERS = ()


@dataclass
class TaskConfig:
    """How many samples; the first holds one number, the last as many as there are samples."""

    n_samples: int = 8


class Counting(Dataset):
    def __init__(self, n_samples):
        self.n_samples = n_samples

    def __len__(self):
        return self.n_samples

    def __getitem__(self, index):
        return torch.arange(1.0, index + 2)


def load_train_data(config):
    return Counting(config.n_samples)


def collate(samples, counted):
    kept = [sample for sample, counts in zip(samples, counted, strict=True) if counts]
    numbers = torch.cat(kept) if kept else torch.zeros(0)
    return {"numbers": numbers[:, None], "labels": (numbers % 2).long()}, len(numbers)


def build_model(config):
    torch.manual_seed(0)  # the tutorial's
    return nn.Linear(1, 2, bias=False)


def loss_sum(model, batch):
    return nn.functional.cross_entropy(model(batch["numbers"]), batch["labels"], reduction="sum")


def save_model(config, model, weights, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / "model.safetensors")
