"""What command.json, outcome.json and the records of tokenized data may contain; the rest is ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_LARGEST = 1 << 63
"""Larger than any count, size or time of a run; much larger numbers cannot be shown."""
_SHAPES: dict[str, type | tuple[type, ...]] = {
    "argv": list,
    "arguments": list,
    "plan": dict,
    "plan.machine": dict,
    "config_values": dict,
    "versions": dict,
    "machine": dict,
    "environment": dict,
    "inherited": dict,
    "git": dict,
    "git.changed": list,
    "files": dict,
    "data": dict,
    "ignored": list,
    "instead_of_plan": dict,
    "ranks": dict,
    "observed": dict,
    "forecast": dict,
    "measured": dict,
    "measured.ranks": dict,
    "seconds": (int, float),
    "first_failed_rank": int,
    "tokens": int,
}
"""The values of these dotted keys, as code that reads them expects them."""


def readable(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without NaN and values of a type that trainwiz does not write."""
    kept: dict[str, Any] = _finite(record)
    for path, shape in _SHAPES.items():
        *above, key = path.split(".")
        here: Any = kept
        for part in above:
            here = here.get(part) or {}
        if here.get(key) is not None and not isinstance(here[key], shape):
            del here[key]
    return kept


def counted(value: Any) -> Any:
    """The value, None for each integer in it that no float holds."""
    if isinstance(value, dict):
        return {key: counted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [counted(item) for item in value]
    return None if isinstance(value, int) and abs(value) >= _LARGEST else value


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else counted(value)
