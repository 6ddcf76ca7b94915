"""The metrics of a run as series: with gaps, joined over resumed runs, and thinned for drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Record = Mapping[str, Any]
"""One line of metrics.jsonl."""
Point = tuple[float, float | None]
"""Update and value; None if the value was not finite."""


Series = Sequence[Point]
"""One metric in the order of the updates."""


def finite(points: Series) -> list[float]:
    """The values that are finite."""
    return [y for _, y in points if y is not None]


def series(records: Sequence[Record], name: str) -> Series:
    """One metric; records without it are left out."""
    found: dict[float, float | None] = {}
    for record in records:
        update = number(record.get("update"))
        if update is not None and name in record:
            # An update may be repeated after a resume; the last one counts.
            found[update] = number(record[name])
    return tuple(sorted(found.items(), key=lambda point: point[0]))


def finite_values(records: Sequence[Record], name: str) -> list[float]:
    """The finite values of one metric."""
    return finite(series(records, name))


def names(records: Sequence[Record], prefix: str = "") -> list[str]:
    """The names of all metrics, in the order of their appearance."""
    return list(dict.fromkeys(name for record in records for name in record if name.startswith(prefix)))


def joined(parts: Sequence[Sequence[Record]]) -> list[Record]:
    """The records of a run and of those that it continues, the oldest first, each up to where the next one began."""
    result: list[Record] = []
    for part in parts:
        updates = [u for record in part if (u := number(record.get("update"))) is not None]
        if updates:
            began = min(updates)
            result = [record for record in result if (number(record.get("update")) or 0) < began]
        result += part
    return result


def last(records: Sequence[Record], name: str) -> float | None:
    """The newest finite value of a metric."""
    values = finite_values(records, name)
    return values[-1] if values else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """How well the GPUs are used; None: the script does not say."""

    mfu: float | None
    """Median share of the GPUs' FLOP/s that the model needs."""
    data_wait: float | None
    """Median share of the time in which the slowest rank waits for data."""
    gpu_peak_bytes: int | None
    """The most memory in tensors, on the GPU with the most."""


def use(records: Sequence[Record], window: int | None = None) -> Use:
    """The use of the GPUs over the last `window` records, or over all except the first, which includes warm-up."""
    peaks = finite_values(records, "gpu_memory_peak_bytes")
    return Use(
        mfu=_median(records, "mfu", window),
        data_wait=_median(records, "data_wait_share", window),
        gpu_peak_bytes=round(max(peaks)) if peaks else None,
    )


def speed(records: Sequence[Record], window: int | None = None) -> float | None:
    """Median tokens per second over the last `window` records, or over all except the first, which includes warm-up."""
    return _median(records, "tokens_per_second", window)


def _median(records: Sequence[Record], name: str, window: int | None) -> float | None:
    values = finite_values(records, name)
    if window is None:
        values = values[1:] or values
    return median(values[-window:] if window else values) if values else None


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """About `most` points that look the same: of each stretch the first, the lowest, the highest, and a gap.

    The extremes are kept instead of a mean, so that a spike remains visible in a long run.
    """
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / max(1, most // 4))
    kept: list[Point] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        numbers = [point for point in stretch if point[1] is not None]
        gap = next((point for point in stretch if point[1] is None), None)
        extremes = [min(numbers, key=_y), max(numbers, key=_y)] if numbers else []
        chosen = [stretch[0], *extremes, *([gap] if gap else [])]
        kept += sorted(dict.fromkeys(chosen), key=lambda point: point[0])
    if kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


def sampled(records: Sequence[Record], most: int) -> list[Record]:
    """About `most` records: every n-th, those of evaluations, and all of the newest."""
    if len(records) <= most:
        return list(records)
    newest = most // 4
    old, step = records[:-newest], math.ceil(len(records) / (most - newest))
    kept = [record for i, record in enumerate(old) if i % step == 0 or "loss" not in record]
    return [*kept, *records[-newest:]]


def trend(points: Sequence[Point], most: int) -> list[Point]:
    """The means of about `most` stretches of equal length, at their centres."""
    size = math.ceil(len(points) / most)
    found: list[Point] = []
    for start in range(0, len(points), size):
        numbers = [(x, y) for x, y in points[start : start + size] if y is not None]
        if numbers:
            found.append((sum(x for x, _ in numbers) / len(numbers), sum(y for _, y in numbers) / len(numbers)))
    return found


def _y(point: Point) -> float:
    return point[1] if point[1] is not None else 0.0


def number(value: Any) -> float | None:
    """A finite number from a record; None for anything else."""
    # bool is a subclass of int; Python's JSON may contain NaN and Infinity.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
