"""Random numbers of a loss: where they are drawn, and the same ones for each sample of a micro-batch.

With the same numbers for each sample, a loss that treats samples independently gives the same sum for any split.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FACTORIES = ("rand", "randn", "randint", "normal")
"""Operations that make a tensor of a shape."""
ALIKE = ("rand_like", "randn_like", "randint_like")
"""Operations that make a tensor of the shape of another."""
IN_PLACE = ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "log_normal_", "cauchy_", "geometric_")
OTHERS = ("bernoulli", "multinomial", "poisson", "randperm", "native_dropout")


def innermost(in_project: Callable[[str], bool]) -> str:
    """The innermost line of the project that is running, as file:line."""
    stack = [frame for frame in traceback.extract_stack() if in_project(frame.filename)]
    return f"{os.path.basename(stack[-1].filename)}:{stack[-1].lineno}" if stack else ""


class Draws(TorchDispatchMode):
    """Notes each operation that draws from a global generator, with the user's line."""

    def __init__(self, in_project: Callable[[str], bool]) -> None:
        super().__init__()
        self.seen: list[list[str]] = []
        self.in_project = in_project

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in (*FACTORIES, *ALIKE, *IN_PLACE, *OTHERS) and not (kwargs or {}).get("generator"):
            self.seen.append([name, innermost(self.in_project)])
        return func(*args, **(kwargs or {}))


# docs/decisions/wizard.md: A random loss is rehearsed with the same numbers for each sample
class SameForAll(TorchDispatchMode):
    """Gives each sample (each entry of the first dimension) the same random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func.overloadpacket.__name__, kwargs or {}
        if given.get("generator") is not None:
            return func(*args, **given)
        if name in FACTORIES:
            at = next((i for i, one in enumerate(args) if isinstance(one, list | tuple | torch.Size) and one), None)
            if at is not None:
                shape = list(args[at])
                one = func(*args[:at], [1, *shape[1:]], *args[at + 1 :], **given)
                return one.expand(shape).clone()
        elif name in ALIKE and args[0].dim():
            return func(args[0][:1], *args[1:], **given).expand_as(args[0]).clone()
        elif name in IN_PLACE and args[0].dim() and not any(isinstance(one, torch.Tensor) for one in args[1:]):
            first = func(args[0][:1].clone(), *args[1:], **given)
            return args[0].copy_(first.expand_as(args[0]))
        elif name == "bernoulli" and len(args) == 1 and args[0].dim():
            return (torch.rand_like(args[0][:1]) < args[0]).to(args[0].dtype)
        return func(*args, **given)
