"""The size of the model: told, or found, and what it was found by."""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.decide.decision import Decision
from trainwiz.estimate.state import layers
from trainwiz.message import Message, say

SMALL_MODEL = 50e6
_KEY = "model.parameters"
_FOUND_BY: Mapping[str, Message] = {
    "files": say("counted in the model's files"),
    "config": say("counted from the model's config.json"),
    "hub": say("the number shown on the hub"),
    "table": say("a well-known model"),
    "name": say("taken from the model's name; its layers are assumed to be typical for this size"),
}


def decide_size(d: Decision) -> None:
    """The number of parameters, and the layers that activations depend on."""
    name, model = d.values["model.name"], d.model
    preset = d.task.shape(name)
    found = preset.parameters if preset else model.parameters if model else None
    d.parameters = found or (None if preset else d.answers.get(_KEY))
    if d.parameters is not None:
        d.transformer = layers(d.task, name, d.parameters, model.transformer if model and not preset else None)
    if preset or not d.task.names_models:
        d.settle_default(_KEY, say("only for models from a folder or from the hub"))
    elif found and model and (reason := _FOUND_BY.get(model.size_source or "")):
        d.settle(_KEY, found, reason, "found")
    else:
        d.settle(_KEY, None, say("unknown: neither the hub nor the model's name gives it"))


def size_of(d: Decision) -> float:
    """The number of parameters; a model of unknown size counts as one of a billion: of the presets, the largest."""
    if d.task.own_code:
        return 0
    return d.parameters if d.parameters is not None else 1e9
