"""Checks what task.py gives the loop. What it cannot use ends the training with the function's name and a remedy.

Nothing here changes a value: a task.py without faults trains the same without these checks.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Mapping
from typing import Any

import torch

# feature: eval
from torch import nn

# end: eval
import task

NEEDED = {
    "load_train_data": "config",
    # feature: eval
    "load_eval_data": "config",
    "evaluation_sums": "model, batch",
    "evaluation_metrics": "sums",
    # end: eval
    "collate": "samples, counted",
    "build_model": "config",
    "loss_sum": "model, batch",
    "save_model": "config, model, weights, folder",
}
"""The functions that task.py must have, and what they are called with."""
HOOKS = {
    "parameter_groups": "config, model",
    "build_optimizers": "config, model",
    "schedule": "config, update, total",
    "after_update": "config, model, update",
    "evaluation_outputs": "model, batch",
    "metrics": "outputs",
}
"""Those that it may have."""


def check_task() -> None:
    """Exit if task.py lacks a function, or has one that cannot be called. Print which look like hooks but are none."""
    if lacking := [name for name in NEEDED if not hasattr(task, name)]:
        raise SystemExit(f"task.py has no {', '.join(lacking)}")
    for name, given in {**NEEDED, **HOOKS}.items():
        function = getattr(task, name, None)
        if function is None:
            continue
        if not callable(function):
            raise SystemExit(f"{name} in task.py is not a function but {kind(function)}")
        given += ", name" if name == "loss_sum" and takes_turns() else ""
        try:
            inspect.signature(function).bind(*given.split(", "))
        except TypeError as error:
            raise SystemExit(f"{name} in task.py is called with ({given}), which it cannot take: {error}") from None
    if hasattr(task, "evaluation_outputs") and not hasattr(task, "metrics"):
        raise SystemExit("task.py has evaluation_outputs without metrics, which gets the outputs: write it, too")
    if os.environ.get("RANK", "0") == "0":
        for line in unused():
            print(line, flush=True)


def takes_turns() -> bool:
    """Return whether `loss_sum` has the third parameter that several optimizers need."""
    return hasattr(task, "build_optimizers") and len(inspect.signature(task.loss_sum).parameters) > 2


def unused() -> list[str]:
    """Return a line for each function of task.py that nothing calls although it looks like a hook."""
    own = {name: each for name, each in vars(task).items() if inspect.isfunction(each) and each.__module__ == "task"}
    called = {name for each in own.values() for name in each.__code__.co_names}
    absent = [name for name in HOOKS if not hasattr(task, name)]
    lines = []
    for name in own.keys() - called - NEEDED.keys() - HOOKS.keys():
        if near := difflib.get_close_matches(name, absent, 1, 0.8):
            lines.append(f"task.py: {name} is not used; the hook is called {near[0]}")
    if hasattr(task, "metrics") and not hasattr(task, "evaluation_outputs") and "metrics" not in called:
        lines.append("task.py: metrics is not used; it needs evaluation_outputs, which returns what it gets")
    return sorted(lines)


def kind(value: object) -> str:
    """Return what a value is, for people."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def scalar(loss: Any) -> torch.Tensor:
    """Return the loss of a micro-batch. Exit if it is no number that the weights decide."""
    if not isinstance(loss, torch.Tensor) or loss.dim() > 0 or not loss.is_floating_point():
        raise SystemExit(f"loss_sum in task.py returns {kind(loss)}; it must return one number, the sum of the losses")
    if not loss.requires_grad:
        raise SystemExit("loss_sum in task.py returns a loss without a gradient: it must depend on trained weights")
    return loss


def share(found: Any, update: int) -> float:
    """Return what `schedule` returns. Exit if that is no share of the learning rate."""
    number = found.item() if isinstance(found, torch.Tensor) and found.numel() == 1 else found
    if not isinstance(number, int | float) or not 0 <= number < math.inf:
        shown = number if isinstance(number, int | float) else kind(number)
        raise SystemExit(f"schedule in task.py returns {shown} for update {update}; it must return a share, 0 or more")
    return number


# feature: own_optimizers
def refuse_others_than_optimizers(built: Any) -> None:
    """Exit if what `build_optimizers` returns is neither an optimizer nor some by name."""
    every = [*built.values()] if isinstance(built, Mapping) else [built]
    wrong = next((one for one in every if not hasattr(one, "param_groups")), None)
    if not every or wrong is not None or None in every:
        found = "no optimizer" if not every else kind(wrong)
        raise SystemExit(
            f"build_optimizers in task.py returns {found}; "
            'it must return an optimizer, or several by name: {"critic": …, "generator": …}'
        )


def groups_of(given: Any) -> list[dict[str, Any]]:
    """Return the groups that `parameter_groups` returns. Exit if these are no groups."""
    groups = None if given is None or isinstance(given, Mapping) else list(given)
    if groups is None or not all(isinstance(group, Mapping) and "params" in group for group in groups):
        raise SystemExit(
            f"parameter_groups in task.py returns {kind(given)}; "
            'it must return groups: [{"params": [weights], "lr": 0.001}, …]'
        )
    return [{**group, "params": list(group["params"])} for group in groups]


def refuse_unknown_settings(groups: list[dict[str, Any]], optimizer: Any) -> None:
    """Exit if a group has a setting that the optimizer does not know, which torch ignores."""
    known = {"params", "factor", "name", "param_names", *optimizer.defaults}
    if unknown := sorted({name for group in groups for name in group.keys() - known}):
        raise SystemExit(
            f"parameter_groups in task.py sets {', '.join(unknown)}, which {type(optimizer).__name__} does not have; "
            f"it has {', '.join(optimizer.defaults)}"
        )


# end: own_optimizers
# feature: eval
def measured(name: str, found: Any) -> dict[str, float]:
    """Return metrics as numbers. Exit if a function returns something else."""
    if not isinstance(found, Mapping):
        raise SystemExit(f"{name} in task.py returns {kind(found)}; it must return numbers by name")
    numbers = {metric: value.item() if hasattr(value, "item") else value for metric, value in found.items()}
    if wrong := [metric for metric, value in numbers.items() if not isinstance(value, int | float)]:
        raise SystemExit(f"{name} in task.py returns {kind(found[wrong[0]])} as {wrong[0]}; it must be a number")
    return numbers


def sums_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return what the loop adds up over all evaluation batches. Exit if it is no list of numbers."""
    found = task.evaluation_sums(model, batch)
    if not isinstance(found, torch.Tensor):
        raise SystemExit(
            f"evaluation_sums in task.py returns {kind(found)}; it must return one tensor, such as loss and count"
        )
    return found.double()


def outputs(found: Any) -> Mapping[str, torch.Tensor]:
    """Return what `evaluation_outputs` returns. Exit if these are no rows by name."""
    values = found.values() if isinstance(found, Mapping) else [found]
    if wrong := [one for one in values if not isinstance(one, torch.Tensor) or one.dim() == 0]:
        raise SystemExit(
            f"evaluation_outputs in task.py returns {kind(wrong[0])}; it must return tensors by name, with a row for "
            "each sample"
        )
    return found


# feature: plain
class Unchanged:
    """Exits if an evaluation changes the model: what it computes must not depend on when it is evaluated."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.before = self.versions()

    def versions(self) -> dict[str, tuple[int, int]]:
        """Return how often each weight, buffer and gradient was changed."""
        found = {name: (tensor._version, -1) for name, tensor in self.model.named_buffers()}
        for name, weight in self.model.named_parameters():
            found[name] = weight._version, -1 if weight.grad is None else weight.grad._version
        return found

    def check(self) -> None:
        """Exit with the name of what was changed."""
        now = self.versions()
        if changed := [name for name, version in self.before.items() if now.get(name) != version]:
            raise SystemExit(
                f"an evaluation changed the model ({changed[0]}): evaluation_sums, evaluation_outputs and metrics in "
                "task.py must leave it as it is; they run in evaluation mode, without gradients"
            )


# end: plain


# end: eval
