"""What was forecast of a run, beside what was measured; a miss, and the part of the forecast that likely missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainwiz.message import Message, say
from trainwiz.record.metrics import Record, finite_values, number

MISS = 0.15
"""A larger difference from the forecast is named."""
_GAPS = 1.2
"""The allocator's blocks are this much larger than the tensors in them: then they have gaps."""
QUANTITIES: dict[str, Message] = {
    "allocated_bytes": say("GPU memory of tensors"),
    "reserved_bytes": say("GPU memory including the allocator's gaps"),
    "host_bytes": say("host memory of a rank"),
    "seconds_per_update": say("time of an update"),
    "checkpoint_bytes": say("a checkpoint"),
}
"""What is compared, in the order in which it is shown."""
_PARTS = {
    "state": say("weights, gradients and optimizer state"),
    "buffers": say("gathered and cast weights, and buckets"),
    "activations": say("activations and logits"),
    "compute": say("matrix multiplications and attention"),
    "memory": say("memory traffic of layers"),
    "launches": say("kernel launches"),
    "communication": say("communication between ranks"),
    "step": say("the optimizer step"),
}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One quantity of a run: of several ranks, that of the largest."""

    name: str
    """A key of `QUANTITIES`."""
    forecast: float
    """In the quantity's own unit: bytes, or seconds."""
    measured: float
    """In the same unit."""
    likely: Message | None = None
    """The part that the miss likely comes from; None where nothing is missed."""

    @property
    def error(self) -> float:
        """The measured value's distance from the forecast, as a share of the forecast: +0.2 is a fifth more."""
        return self.measured / self.forecast - 1

    @property
    def missed(self) -> bool:
        """Whether the difference is worth naming."""
        return abs(self.error) > MISS


@dataclass(frozen=True, kw_only=True)
class Correction:
    """What a forecast is multiplied by."""

    factor: float
    """Measured over forecast."""
    runs: int
    """How many it is the median of."""


def seconds_per_update(records: Sequence[Record]) -> float | None:
    """The median over all records except the first, which includes warm-up."""
    values = finite_values(records, "seconds_per_update")
    return median(values[1:] or values) if values else None


def compared(outcome: Mapping[str, Any]) -> tuple[Compared, ...]:
    """What `outcome.json` has both a forecast and a measurement of.

    A run that ended before its first update had not yet held what is forecast: less of it says nothing.
    """
    began = outcome.get("first_update_seconds", 0) is not None
    forecast, measured = _mapping(outcome.get("forecast")), measurements(outcome)
    found = []
    for name in QUANTITIES:
        expected, seen = number(forecast.get(name)), measured.get(name)
        if expected and seen and expected > 0 and seen > 0 and (began or seen > expected):
            pair = Compared(name=name, forecast=expected, measured=seen)
            found.append(
                Compared(name=name, forecast=expected, measured=seen, likely=_likely(pair, forecast, measured))
                if pair.missed
                else pair
            )
    return tuple(found)


def measurements(outcome: Mapping[str, Any]) -> dict[str, float]:
    """What was measured of a run, by the names of `QUANTITIES`: of the ranks, the largest."""
    measured = _mapping(outcome.get("measured"))
    found = {name: number(measured.get(name)) for name in QUANTITIES}
    for held in _mapping(measured.get("ranks")).values():
        for name, count in _mapping(held).items():
            value = number(count)
            if name in QUANTITIES and value is not None:
                found[name] = max(value, found.get(name) or 0)
    return {name: value for name, value in found.items() if value is not None}


def _likely(pair: Compared, forecast: Mapping[str, Any], measured: Mapping[str, float]) -> Message:
    tensors, blocks = measured.get("allocated_bytes"), measured.get("reserved_bytes")
    if pair.name == "checkpoint_bytes":
        return say("optimizer state")
    if pair.name == "reserved_bytes" and tensors and blocks and pair.error > 0 and blocks > _GAPS * tensors:
        return say("gaps between the allocator's blocks")
    of_time = pair.name == "seconds_per_update"
    parts = _mapping(forecast.get("seconds" if of_time else "parts"))
    known = {name: value for name in _PARTS if (value := number(parts.get(name)))}
    if not of_time and forecast.get("layers_known") is False:
        return say("activations: the model's layers are unknown")
    if pair.name == "host_bytes" and pair.forecast > 2 * sum(known.values()):
        return say("the process's memory besides the model: libraries and data")
    if not of_time and pair.error < 0 and forecast.get("moment") in ("loss", "backward"):
        return say("activations: samples are shorter than the plan's sequence length")
    return _PARTS[max(known, key=lambda name: known[name])] if known else say("unknown")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
