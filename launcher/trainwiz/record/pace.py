"""The remaining time of a training, from the updates that were observed."""

from __future__ import annotations

from collections import deque

_WINDOW = 120
"""Observations; at one per second, the last two minutes. The pace of a training changes with its data."""


class Pace:
    """Seconds per update; `before` is the value for the updates before the first observation."""

    def __init__(self, before: float | None = None) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._before = before

    def saw(self, seconds: float, update: float) -> None:
        """Note that an update was reached. If it is lower than before (a restart), observation begins anew."""
        if self._seen and update < self._seen[-1][1]:
            self._seen.clear()
        if not self._seen or update > self._seen[-1][1]:
            self._seen.append((seconds, update))

    def per_update(self) -> float | None:
        """Seconds for one update."""
        if len(self._seen) > 1:
            (began, first), (ended, last) = self._seen[0], self._seen[-1]
            return (ended - began) / (last - first)
        return self._before

    def left(self, total: float, now: float) -> float | None:
        """Seconds until update `total`."""
        pace = self.per_update()
        if pace is None or not self._seen:
            return None
        at, update = self._seen[-1]
        return max(0.0, pace * (total - update) - (now - at if len(self._seen) > 1 else 0.0))
