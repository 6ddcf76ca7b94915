"""The task: data, model and loss of the script that this project was imported from. Edit it freely.

The loop in train.py uses TaskConfig and these functions. It divides the summed loss by the count of the whole real
batch, over all micro-batches and ranks, so the gradient is that of one big batch for any split. hooks.py lists what
else can be decided here. `trainwiz rehearse` checks whether the loss here is summed and counted correctly.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

Batch = tuple[Any, Tensor]
"""What `collator` makes, and the count that its loss is averaged over."""

SHARDED_LAYERS: tuple[str, ...] = ()
"""edit: names of the repeated module classes. FSDP shards each such module as one unit."""


@dataclass
class TaskConfig:
    """edit: settings of the task. `--name value` overrides one."""


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """Return the training data: a length, and items by index."""
    raise NotImplementedError("write load_train_data in task.py")


@functools.cache
def collator() -> Any:
    """Return the function that makes a batch of samples; made once in each process."""
    return torch.utils.data.default_collate


def collate(samples: list[Any], counted: list[bool]) -> tuple[Batch, float]:
    """Return one micro-batch, and the count that its loss is averaged over.

    A sample whose `counted` is false only pads the last batch of an epoch. It is left out; if there is no other, it
    stays and counts zero.
    """
    kept = [sample for sample, counts in zip(samples, counted, strict=True) if counts]
    batch = collator()(kept or samples[:1])
    n = count(batch, len(kept)) if kept else 0
    return (batch, torch.tensor(n)), n


def count(batch: Any, samples: int) -> float:
    """edit: what the script's loss is averaged over."""
    return samples


def build_model(config: TaskConfig) -> nn.Module:
    """Return the model on the CPU in fp32. The engine moves, casts and shards it."""
    raise NotImplementedError("write build_model in task.py")


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the script's mean loss times its count: the sum over what `collate` counts, in fp32."""
    raise NotImplementedError("write loss_sum in task.py")


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
    """Save the final weights, gathered from all ranks; a transformers model so that `from_pretrained` loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder, state_dict=weights)
    else:
        save_file(apart(weights), folder / "model.safetensors")
