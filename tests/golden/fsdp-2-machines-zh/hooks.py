"""What task.py may decide besides data, model and loss. Each is a function in task.py; without it, nothing changes.

- `parameter_groups(config, model)` returns groups as torch.optim takes them: `params`, and what differs for them, such
  as `lr` or `weight_decay`.
- `build_optimizers(config, model)` returns an optimizer, or several by name: `{"critic": …, "generator": …}`. Several
  take turns in each update, in this order. `loss_sum(model, batch, name)` is the loss of a turn; only the parameters of
  its optimizer get a gradient from it. `model` is then the module itself, whose parts can be called.
- `schedule(config, update, total)` returns the share of the learning rates for update 0 … `total` - 1.
- `after_update(config, model, update)` runs after each update, without gradients, to keep averages of the weights (EMA)
  or targets. What it changes must be part of the model, as buffers or as parameters that are not trained, so that
  checkpoints save it.
- `evaluation_outputs(model, batch)` returns tensors by name, a row per sample. `metrics(outputs)` gets them for the
  whole evaluation set, in the same order for any number of ranks, and returns metrics that are not sums, such as AUC.

Learning rates that these functions return are those at the schedule's peak. A batch may be any nesting of dicts, lists,
tuples and dataclasses that hold tensors.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import random
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import checks
import task
from batches import Agreement, RealBatches, keyed_seed

if TYPE_CHECKING:
    from train import Config

REFUSED: dict[str, str] = {}
"""The hooks that the engine of this project does not support, and why."""


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with all its tensors on a device. Anything else is returned as it is."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):  # such as transformers' BatchEncoding
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(part, device) for part in batch)
    if isinstance(batch, Mapping) or (dataclasses.is_dataclass(batch) and not isinstance(batch, type)):
        return copied(batch, device)
    return batch


def copied(batch: Any, device: torch.device) -> Any:
    """Return a mapping or a dataclass with its parts on a device."""
    other = copy.copy(batch)
    if isinstance(batch, Mapping):
        for name, part in batch.items():
            other[name] = moved(part, device)
        return other
    for field in dataclasses.fields(batch):
        object.__setattr__(other, field.name, moved(getattr(batch, field.name), device))  # it may be frozen
    return other


def seed(number: int) -> None:
    """Seed Python's and numpy's generators: data that task.py shuffles with them is then the same on all ranks."""
    random.seed(number)
    numpy.random.seed(number % 2**32)


def refuse_others() -> None:
    """Exit if task.py has a hook that the engine does not support."""
    for name, why in REFUSED.items():
        if hasattr(task, name):
            raise SystemExit(f"task.py has {name}, which this project cannot use: {why}")


def build_optimizers(config: Config, model: nn.Module, usual: Any) -> tuple[Any, list[float | None]]:
    """Return the task's optimizer, or the usual one, and the rate of each group; None: the learning rate.

    Several optimizers are returned as one that takes turns.
    """
    refuse_others()
    if hasattr(task, "build_optimizers"):
        if hasattr(task, "parameter_groups"):
            raise SystemExit("task.py has build_optimizers and parameter_groups: the first one makes the groups itself")
        built = task.build_optimizers(config, model)
        checks.refuse_others_than_optimizers(built)
        if isinstance(built, Mapping) and len(built) > 1:
            names = ", ".join(built)
            raise SystemExit(
                f"build_optimizers returns several optimizers ({names}); they need the strategies single or ddp"
            )
        usual = next(iter(built.values())) if isinstance(built, Mapping) else built
        refuse_closure(usual)
        rates: list[float | None] = [group["lr"] for group in usual.param_groups]
    elif hasattr(task, "parameter_groups"):
        groups = checks.groups_of(task.parameter_groups(config, model))
        groups = [group for group in groups if group["params"]]
        checks.refuse_unknown_settings(groups, usual)
        rates = [group.get("lr") for group in groups]
        usual.param_groups.clear()
        for group in groups:
            usual.add_param_group(group)
    else:
        rates = [None] * len(usual.param_groups)
    check_parameters(model, usual)
    return usual, rates


def refuse_closure(optimizer: Any) -> None:
    """Exit if an optimizer computes the loss of a batch by itself, several times, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure and closure.default is inspect.Parameter.empty:
        raise SystemExit(
            "task.py has build_optimizers, which this project cannot use: "
            f"{type(optimizer).__name__} needs a closure, to compute the loss of a batch several times"
        )


def check_parameters(model: nn.Module, optimizer: Any) -> None:
    """Exit if a parameter that is to be trained has no optimizer, or two of them."""
    held = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    left = [name for name, parameter in model.named_parameters() if parameter.requires_grad and not held[id(parameter)]]
    if left:
        raise SystemExit(
            f"parameters without an optimizer: {len(left)} ({left[0]}); give them one, or set requires_grad to False"
        )
    for name, parameter in model.named_parameters():
        if held[id(parameter)] > 1:
            raise SystemExit(f"two optimizers have the same parameter: {name}")


def scheduled(config: Config, update: int, total: int, usual: float) -> float:
    """Return the learning rate of an update; `usual` is that of the plan's schedule."""
    if not hasattr(task, "schedule"):
        return usual
    return config.learning_rate * checks.share(task.schedule(config, update, total), update)


def set_rates(
    config: Config, optimizer: Any, rates: list[float | None], update: int, total: int, usual: float
) -> float:
    """Set the rate of each group. Return the learning rate; that of the first group, where each has its own."""
    usual = scheduled(config, update, total, usual)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        rate = usual if rate is None else rate * (usual / config.learning_rate)
        group["lr"] = rate * group.get("factor", 1.0)
    return usual if None in rates else optimizer.param_groups[0]["lr"]


@torch.no_grad()
def after_update(config: Config, model: Any, update: int) -> None:
    """Call the task's `after_update` with the model itself, after update 1, 2, …"""
    if not hasattr(task, "after_update"):
        return
    torch.manual_seed(keyed_seed(config.seed, update, "after_update"))  # what it draws is the same on all ranks
    with Whole():
        task.after_update(config, bare(model), update)


class Whole(TorchDispatchMode):
    """Makes reading sharded weights give numbers of the whole weights, not of this rank's part.

    Copying to a tensor that is not sharded copies whole weights. The weights stay sharded.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Gather what `item()` and copies to unsharded tensors would otherwise read from one rank."""
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
        reads = func is torch.ops.aten._local_scalar_dense.default
        if any(isinstance(part, DTensor) for part in given) and (reads or not isinstance(given[0], DTensor)):
            args, kwargs = tree_map_only(DTensor, DTensor.full_tensor, (args, kwargs))
        return func(*args, **(kwargs or {}))


def bare(model: Any) -> Any:
    """Return the model inside DDP."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


class Outputs:
    """The rows of the task's `evaluation_outputs`, over all micro-batches and ranks."""

    def __init__(self, order: RealBatches) -> None:
        self.order = order
        self.rows: list[dict[str, torch.Tensor]] = []

    def add(self, model: nn.Module, batch: Any) -> None:
        """Add the rows of this rank's next micro-batch, without those that only pad the last real batch."""
        if not hasattr(task, "evaluation_outputs"):
            return
        accumulation, world, size = self.order.shape
        update, number = divmod(len(self.rows), accumulation)
        place = ((self.order.start + update) * accumulation + number) * world * size + self.order.rank * size
        counted = min(size, max(0, self.order.length - place))
        found = {}
        for name, rows in checks.outputs(task.evaluation_outputs(model, batch)).items():
            if len(rows) not in (size, max(1, counted)):
                raise SystemExit(f"evaluation_outputs: {name} has {len(rows)} rows for {counted} of {size} samples")
            kept = rows[:counted].detach().cpu()
            found[name] = kept.float() if kept.is_floating_point() else kept
        self.rows.append(found)

    def metrics(self) -> dict[str, float]:
        """Return the task's metrics of all rows in the order of the data; the same on every rank."""
        if not self.rows:
            return {}
        shares = [self.rows]
        if dist.is_initialized():
            shares = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(shares, self.rows, group=host_group())
        parts = [part for micro_batches in zip(*shares, strict=True) for part in micro_batches]
        whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return checks.measured("metrics", task.metrics(whole))


@functools.cache
def host_group() -> dist.ProcessGroup | None:
    """Return a group of all ranks over host memory."""
    return Agreement.host_group()
