"""A task that writes its gradients into its weights, to be compared with those of one big batch.

Update k trains only classifier k, which starts at zero; so after the run its weights are its gradient, times what rate
and momentum make of it. The four updates: equal lengths; ragged lengths; one micro-batch that counts nothing; a last
batch that is short.
"""

from __future__ import annotations  # by which the loop reads "false"

from dataclasses import dataclass

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset

KINDS = ("equal", "ragged", "masked", "short")
FEATURES, CLASSES, SHORT = 24, 5, 5
Batch = dict[str, torch.Tensor]
SHARDED_LAYERS = ()


@dataclass
class TaskConfig:
    """Samples of a whole real batch, and of the micro-batch that is masked; fp64 where asked for."""

    size: int = 32
    masked: int = 1
    double: bool = False


def sample(position, size, masked):
    """Features (length, FEATURES), labels (length,) and the update that the sample's position in the order gives."""
    kind = position // size
    generator = torch.Generator().manual_seed(position)
    length = 4 if KINDS[kind] == "equal" else 1 + position % 7
    features = torch.randn(length, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (length,), generator=generator)
    if KINDS[kind] == "masked" and position % size < masked:
        labels[:] = -100
    return features, labels, kind


class Ordered(Dataset):
    def __init__(self, config):
        from train import Config, RealBatches

        self.config = config
        self.length = 3 * config.size + SHORT
        alone = Config(real_batch_size=self.length, per_device_batch_size=self.length, seed=42)
        alone.gradient_accumulation_steps, alone.num_processes = 1, 1
        (order,) = RealBatches(alone, self.length, 0, 0, 1)
        indices = [entry[0] if isinstance(entry, tuple) else entry for entry in order]
        self.position = {index: position for position, index in enumerate(indices)}

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        index = index[0] if isinstance(index, tuple) else index
        return sample(self.position[index], self.config.size, self.config.masked)


def load_train_data(config):
    return Ordered(config)


def collate(samples, counted):
    features, labels, kinds = [], [], []
    for (row, label, kind), counts in zip(samples, counted, strict=True):
        features.append(row)
        labels.append(label if counts else torch.full_like(label, -100))
        kinds.append(torch.full_like(label, kind))
    labels = torch.cat(labels)
    batch = {"features": torch.cat(features), "labels": labels, "kinds": torch.cat(kinds)}
    return batch, int((labels != -100).sum())


class Classifiers(nn.Module):
    """One zero-initialized linear classifier per kind of update."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(KINDS), CLASSES, FEATURES))

    def forward(self, features, kinds):
        return torch.einsum("tf,tcf->tc", features, self.weight[kinds])


def build_model(config):
    return Classifiers().double() if config.double else Classifiers()


def loss_sum(model, batch):
    features = batch["features"].to(next(model.parameters()).dtype)
    logits = model(features, batch["kinds"])
    return nn.functional.cross_entropy(logits, batch["labels"], ignore_index=-100, reduction="sum")


def save_model(config, model, weights, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
