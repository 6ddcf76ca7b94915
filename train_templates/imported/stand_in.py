"""Replaces Lightning where it is not installed.

Its modules become plain modules of torch, since the project's own loop does the training. Anything else that a script's
classes need from Lightning raises AttributeError.
"""

from __future__ import annotations

import importlib.util
import inspect
import random
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

PARTS = ("callbacks", "loggers", "profilers", "strategies", "utilities", "utilities.types", "utilities.rank_zero")


class Settings(dict[str, Any]):
    """Settings that are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class LightningModule(torch.nn.Module):
    """A module that logs nothing."""

    trainer, current_epoch, global_step = None, 0, 0

    @property
    def device(self) -> torch.device:
        """Return the device of its weights."""
        return next(self.parameters()).device

    def save_hyperparameters(self, *given: Any, ignore: Any = (), **_: Any) -> None:
        """Keep the arguments of `__init__` as `hparams`, or those that are named, or those in one object."""
        frame = inspect.currentframe()
        values = frame.f_back.f_locals if frame and frame.f_back else {}
        kinds = inspect.signature(type(self).__init__).parameters
        made = {name: values[name] for name in [*kinds][1:] if name in values}
        for name in [name for name, one in kinds.items() if one.kind is one.VAR_KEYWORD and name in made]:
            made |= made.pop(name)
        left_out = [ignore] if isinstance(ignore, str) else list(ignore or ())
        objects = [one for one in given if not isinstance(one, str)]
        if objects:
            made = dict(objects[0] if isinstance(objects[0], Mapping) else vars(objects[0]))
        elif given:
            made = {name: made[name] for name in given}
        self.hparams = Settings({**getattr(self, "hparams", {}), **made})
        for name in left_out:
            self.hparams.pop(name, None)

    def log(self, *_: Any, **__: Any) -> None:
        """Do nothing: train.py writes the records."""

    def log_dict(self, *_: Any, **__: Any) -> None:
        """Do nothing, like `log`."""


class LightningDataModule:
    """A class that holds all data loaders."""

    save_hyperparameters = LightningModule.save_hyperparameters

    def prepare_data(self) -> None:
        """Do nothing."""

    def setup(self, stage: str) -> None:
        """Do nothing."""


class Unused:
    """Anything else that is imported; the project does not use it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def seed_everything(seed: int, **_: Any) -> int:
    """Seed the generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    return seed


def for_lightning() -> None:
    """Make `import lightning` and `import pytorch_lightning` find these classes if Lightning is not installed."""
    for package in ("lightning", "pytorch_lightning"):
        if package in sys.modules or importlib.util.find_spec(package):
            continue
        inside = "pytorch." if package == "lightning" else ""
        names = ["", *(["pytorch"] if inside else []), *(inside + part for part in PARTS), *PARTS]
        for name in dict.fromkeys(names):
            module: Any = ModuleType(f"{package}.{name}".rstrip("."))
            module.__path__ = []
            module.LightningModule, module.LightningDataModule = LightningModule, LightningDataModule
            module.seed_everything = seed_everything
            module.__getattr__ = lambda asked: Unused if asked[:1].isupper() else _missing(asked)
            sys.modules[module.__name__] = module
            parent, _, last = module.__name__.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, module)


def _missing(name: str) -> Any:
    raise AttributeError(f"Lightning is not installed, and {name} has no stand-in")
