"""Parameters that are not trained, by their names."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn


def freeze(model: nn.Module, frozen: str) -> None:
    """Freeze the parameters whose names have one of these parts (embed,layers.0.): `*` stands for anything.

    Exit if one of them matches no name, or if nothing is left to train.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for pattern in (part.strip() for part in frozen.split(",")):
        found = [parameter for name, parameter in named if fnmatchcase(name, f"*{pattern}*")]
        if not found:
            some = ", ".join(name for name, _ in named[:: max(1, len(named) // 5)])
            raise SystemExit(f"frozen: {pattern} matches no parameter; some of them are {some}")
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for _, parameter in named):
        raise SystemExit(f"frozen: {frozen} leaves nothing to train")
