"""The axes of a chart: round numbers as marks, and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_FARTHEST, _NEAREST = 1e300, 1e-300
"""Beyond these limits, differences are not representable."""
_SAME = 1e-14


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis."""

    low: float
    """The lowest value that is shown."""
    high: float
    """The highest value that is shown."""
    marks: tuple[float, ...]
    """Round numbers in ascending order."""
    labels: tuple[str, ...]
    """The text at each mark."""

    def place(self, value: float) -> float:
        """The position of a value on the axis, from 0 to 1."""
        share = (max(-_FARTHEST, min(value, _FARTHEST)) - self.low) / (self.high - self.low)
        return max(0.0, min(share, 1.0))


def scale(values: Sequence[float], *, marks: int = 5, whole: bool = False) -> Scale:
    """An axis that shows all values, with about `marks` marks; only at whole numbers if `whole`."""
    found = [max(-_FARTHEST, min(value, _FARTHEST)) for value in values]
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if high - low <= max(_NEAREST, max(abs(low), abs(high)) * _SAME):
        # A constant value is shown in the middle, and so are values whose difference is only one of rounding.
        margin = abs(low) * 0.5 if abs(low) > _NEAREST else 1.0
        low, high = low - margin, high + margin
    step = _step((high - low) / max(1, marks - 1))
    if whole:
        step = max(1.0, float(round(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    at = [i * step for i in range(first, last + 1)]
    # The marks are products and may differ from the values in the last bit.
    return Scale(
        low=min(low, at[0]),
        high=max(high, at[-1]),
        marks=tuple(at),
        labels=tuple(label(v, step, max(map(abs, at))) for v in at),
    )


def label(value: float, step: float, largest: float) -> str:
    """A mark's label, with as many digits as the step needs, in the unit of the largest value: 2.5, 12k, 3e-05."""
    if abs(value) < step * 1e-6:
        return "0"
    if largest >= 1e10 or largest < 1e-3:
        return f"{value:.2g}"
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if largest >= limit:
            return f"{value / divisor:.{_digits(step / divisor)}f}{unit}"
    return f"{value:.{_digits(step)}f}"


def _digits(step: float) -> int:
    digits = 0
    while digits < 6 and abs(round(step, digits) - step) > step * 1e-6:
        digits += 1
    return digits


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return min((step * power for step in _STEPS), key=lambda step: abs(math.log(step / rough)))
