"""The head of a model that was trained to judge texts: it is kept for the same classes, and new for others.

The same number of classes is not enough: an output that meant `negative` would begin as `sports`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

OURS = {"id2label", "label2id", "num_labels", "problem_type"}
"""What a configuration says about the outputs."""


class Change(NamedTuple):
    """What happens to the head that a model came with."""

    rows: tuple[int, ...] = ()
    """Its outputs, in the order of our classes. Empty: the head is new."""
    fits: bool = True
    """Whether its weights have the shape that we need."""


def loading(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments to load a model with, without those about the outputs if its head has another size.

    DeepSpeed cannot load only some of the weights, so such a head is loaded as it is, and `fit` replaces it.
    """
    change = change_of(name, names_of(told))
    fits = change is None or change.fits
    return told if fits else {key: value for key, value in told.items() if key not in OURS}


def fit(model: Any, name: str, told: dict[str, Any]) -> None:
    """Prepare the head of a loaded model: its outputs in our order, or random weights with a bias of 0."""
    wanted = names_of(told)
    change = change_of(name, wanted)
    if change is None or change.rows == tuple(range(len(wanted))):
        return
    for key in OURS & told.keys():
        setattr(model.config, key, told[key])
    model.num_labels = len(wanted)
    place, layer = last_layer(model)
    if change.rows:
        reorder(list(layer.parameters()), change.rows)
        return
    new = nn.Linear(layer.in_features, len(wanted), layer.bias is not None, layer.weight.device, layer.weight.dtype)
    nn.init.normal_(new.weight, 0, model.config.initializer_range)
    if layer.bias is not None:
        nn.init.zeros_(new.bias)
    model.set_submodule(place, new)


def reorder(weights: Sequence[nn.Parameter], rows: tuple[int, ...]) -> None:
    """Reorder the rows of a head."""
    with torch.no_grad():
        # feature: zero3
        if any(hasattr(weight, "ds_id") for weight in weights):  # this rank holds a part of them
            import deepspeed

            with deepspeed.zero.GatheredParameters(weights, modifier_rank=0):
                for weight in weights:
                    weight.copy_(weight[list(rows)])
            return
        # end: zero3
        for weight in weights:
            weight.copy_(weight[list(rows)])


def last_layer(model: Any) -> tuple[str, nn.Linear]:
    """Return the output layer and its name: the last layer outside the body."""
    body = set(model.base_model.modules())
    layers = [(place, part) for place, part in model.named_modules() if isinstance(part, nn.Linear)]
    return [(place, part) for place, part in layers if part not in body][-1]


def names_of(told: dict[str, Any]) -> tuple[str, ...]:
    """Return what the outputs mean. A single number is named by its index."""
    names = told.get("id2label") or {i: f"LABEL_{i}" for i in range(told["num_labels"])}
    return tuple(str(names[i]) for i in sorted(names))


@functools.cache
def change_of(name: str, wanted: tuple[str, ...]) -> Change | None:
    """Return what happens to a model's head, and print it once. None: it has no head for labels of texts."""
    shape = transformers.AutoConfig.from_pretrained(name)
    if not any("ForSequenceClassification" in built for built in shape.architectures or ()):
        return None
    theirs = names_of({"id2label": shape.id2label})
    change = compared(theirs, wanted)
    if os.environ.get("RANK", "0") == "0":
        if change.rows:
            print(f"{name}: its head is kept, since it was trained for the same classes: {shown(wanted)}", flush=True)
        else:
            print(f"{name}: its head was for {shown(theirs)}, so a new one is trained for {shown(wanted)}", flush=True)
    return change


def shown(names: Sequence[str]) -> str:
    """Return the number of outputs and the first of their names."""
    return f"{len(names)} ({', '.join(names[:5])}{', …' * (len(names) > 5)})"


def compared(theirs: tuple[str, ...], ours: tuple[str, ...]) -> Change:
    """Return which of their outputs mean the same as ours, ignoring the case of names."""
    one, other = ([name.strip().casefold().removeprefix("label_") for name in names] for names in (theirs, ours))
    if sorted(one) == sorted(other) and len(set(one)) == len(one):
        return Change(rows=tuple(one.index(name) for name in other))
    return Change(fits=len(theirs) == len(ours))
