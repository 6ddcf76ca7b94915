"""A rank's heartbeat: how often its main thread was looked at, and where it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Beat:
    """One rank's counts so far."""

    looks: int
    """How often its main thread was sampled."""
    waits: int
    """Looks that found it waiting for other ranks."""
    moves: int
    """Looks since which it had moved."""
    place: str
    """Where its own code is: function, file and line."""


def parsed(text: str) -> Beat:
    """The beat that a rank wrote. Raises `ValueError`."""
    looks, waits, moves, place = text.split(" ", 3)
    return Beat(int(looks), int(waits), int(moves), place.strip())
