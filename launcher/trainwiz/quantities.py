"""Bytes and seconds as people read them, the same in every language."""

from __future__ import annotations

import math

_DIGITS = 18
"""The most digits of a number; Python refuses to read more than 4300."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes with the largest unit that gives at least 1: `79.6 GiB`, `100 MiB`, `5120 TiB`."""
    amount, unit = float(count), 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if amount >= 100 or unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def gib(count: float) -> str:
    """Bytes as a number of GiB, for sentences that name the unit: one decimal from 1 GiB on, two below.

    Less than a hundredth shows its first two digits, so that only zero is 0.
    """
    amount = count / 2**30
    if abs(amount) >= 0.01:
        return f"{amount:.1f}" if amount >= 1 else f"{amount:.2f}"
    return f"{amount:.{1 - math.floor(math.log10(abs(amount)))}f}" if amount else "0"


def clock_time(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def whole(text: str) -> int | None:
    """The number of a word of digits, as programs write counts; None for any other word, or too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None
