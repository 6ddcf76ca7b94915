"""The size of a model and its layers: by its files, the hub, the table of known models, the plan, or its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import models
from trainwiz.models import Transformer
from trainwiz.probe import headers
from trainwiz.probe.hub_model import HubModel

_PACKED_TYPES = {"U8": 8, "I8": 8, "I32": 32}
"""Bits of the integers that hold several quantized weights each; bitsandbytes has U8."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Fields of `ModelFacts`."""

    parameters: int | None = None
    """The number of the model's parameters; None: unknown."""
    size_source: str | None = None
    """The source of that number: files, hub, config."""
    usual_parameters: int | None = None
    """The number by the model's config.json alone."""
    transformer: Transformer | None = None
    """Its layers; None: no transformer, or unknown."""
    assumed: bool = False
    """Whether the layers are those that the number of parameters suggests."""


def of_files(files: Callable[[str], list[Path]], config: Mapping[str, Any]) -> Size:
    """By the headers of its weights and by its config.json; `files` gives those that match a pattern."""
    return _of(config, headers.parameters(files, config), "files")


def of_hub(found: HubModel) -> Size:
    """By what the hub answered."""
    config = found.config or {}
    bits = headers.weight_bits(config)
    quantized = isinstance(config.get("quantization_config"), Mapping)
    each = {kind: _PACKED_TYPES.get(kind, bits) // bits if quantized else 1 for kind in found.counts}
    return _of(config, sum(number * each[kind] for kind, number in found.counts.items()) or None, "hub", "hub")


def of_table(name: str) -> Size:
    """By the table of models that people often name."""
    found = models.known(name)
    if found is None:
        return of_number(models.parameters_in_table(name), "table")
    return Size(parameters=found.parameters, size_source="table", transformer=found)


def of_name(name: str) -> Size:
    """By the table of well-known models, or by the number in the name."""
    found = of_table(name)
    return found if found.parameters else of_number(models.parameters_in_name(name), "name")


def of_number(parameters: int | None, source: str) -> Size:
    """By its number of parameters alone."""
    if not parameters:
        return Size()
    shape = models.of_parameters(parameters)
    return Size(parameters=parameters, size_source=source, transformer=shape, assumed=True)


def _of(config: Mapping[str, Any], counted: int | None, source: str, by_shape: str = "config") -> Size:
    shape = models.of_config(config)
    if counted and counted > models.MOST_PARAMETERS:  # no model is so large: a header that lies
        counted = None
    if shape and (counted is None or (shape.exact and config.get("quantization_config"))):
        # Of a quantized model the shape is sure, and what its files hold depends on the method.
        return Size(parameters=shape.parameters, size_source=by_shape, transformer=shape)
    if shape:
        return Size(parameters=counted, size_source=source, transformer=shape)
    return of_number(counted, source)
