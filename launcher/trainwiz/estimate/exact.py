"""The memory of one update, by running it: from the storages seen with few layers to the peak of the whole model.

A model of equal layers is run with two depths. What is in memory in a part of the update grows by the same bytes with
each layer, so the difference is all that the other layers add.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainwiz.models import Transformer

Kind = Literal["parameters", "gradients", "optimizer", "gathered", "activations", "loss", "temporary"]
Part = tuple[str, int]
"""A moment of the update, and the layer from the front (0, 1) or from behind (-1)."""
DEPTHS = (3, 4)
"""Layers to try: the first, the last, and one between them, which has neighbors on both sides."""
_FEW = 6
"""Layers of a model that is tried as it is."""
_KINDS: Mapping[str, Kind] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "gathered": "gathered",
    "forward": "activations",
    "loss": "loss",
}
_OF_MICRO_BATCH: tuple[Kind, ...] = ("activations", "loss", "temporary")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensors:
    """Tensors of one shape that one line made."""

    kind: Kind
    """Weights, gradients, state, activations and the like."""
    line: str
    """File and line; empty for what was there before the update."""
    dtype: str
    """torch's name of it: `bfloat16`."""
    shape: tuple[int, ...]
    """Elements along each axis."""
    count: int
    """The number of such tensors."""
    total: int
    """Bytes of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The peak memory in a part of the update."""

    part: Part
    """When in the update it is."""
    tensors: tuple[Tensors, ...]
    """All that are in memory then."""

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(one.total for one in self.tensors)

    @property
    def kinds(self) -> dict[Kind, int]:
        """Bytes by kind, the largest first."""
        found: dict[Kind, int] = {}
        for one in self.tensors:
            found[one.kind] = found.get(one.kind, 0) + one.total
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    @property
    def of_micro_batch(self) -> int:
        """Bytes of what the model keeps and computes, without the engine's state and buffers."""
        return sum(size for kind, size in self.kinds.items() if kind in _OF_MICRO_BATCH)


def depths(transformer: Transformer | None) -> tuple[int, ...]:
    """The numbers of layers to try; none: the model as it is."""
    if transformer is None or len(transformer.blocks) != 1 or transformer.num_hidden_layers <= _FEW:
        return ()
    return DEPTHS


def moments(runs: Sequence[Mapping[str, Any]], layers: int) -> tuple[Moment, ...]:
    """The parts of an update with `layers` layers, from one run as it is, or from two with few layers."""
    tables = [{tuple(one["part"]): _table(one["groups"]) for one in run["parts"]} for run in runs]
    if len(tables) == 1:
        return tuple(Moment(part=part, tensors=_listed(table)) for part, table in tables[0].items())
    few, more = (run["layers"] for run in runs)
    further = (layers - more) // (more - few)
    found = []
    for part in (part for part in tables[1] if part in tables[0]):
        one, other = tables[0][part], tables[1][part]
        grown = {
            key: tuple(b + further * (b - a) for a, b in zip(one.get(key, (0, 0)), other.get(key, (0, 0)), strict=True))
            for key in {**one, **other}
        }
        found.append(Moment(part=part, tensors=_listed(grown)))
    return tuple(found)


def peaks(found: Iterable[Moment]) -> dict[str, Moment]:
    """The largest part of each moment of the update."""
    largest: dict[str, Moment] = {}
    for one in found:
        name = one.part[0]
        if name not in largest or one.total > largest[name].total:
            largest[name] = one
    return largest


def _table(groups: Iterable[Sequence[Any]]) -> dict[tuple[Any, ...], tuple[int, ...]]:
    found: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for kind, line, dtype, shape, count, total in groups:
        key = (_KINDS.get(kind, "temporary"), line, dtype, tuple(shape))
        before = found.get(key, (0, 0))
        found[key] = (before[0] + count, before[1] + total)
    return found


def _listed(table: Mapping[tuple[Any, ...], Sequence[int]]) -> tuple[Tensors, ...]:
    return tuple(
        Tensors(kind=kind, line=line, dtype=dtype, shape=shape, count=count, total=total)
        for (kind, line, dtype, shape), (count, total) in table.items()
        if total
    )
