"""Decide when a run has stalled: the longest silence allowed, learned from the run itself. Pure; times in seconds."""

from __future__ import annotations

from collections import deque

FLOOR_SECONDS = 300.0
"""The shortest silence that counts, whatever was learned: an evaluation or a checkpoint may be the first one."""
FIRST_FACTOR = 3.0
"""Before anything is learned (imports, loading, compiling, the first update): this many times the floor."""
SLOWEST_FACTOR = 5.0
WINDOW_SECONDS = 3600.0
"""How long a silence is remembered, so that one slow start does not make the limit useless for days."""
LEARNED_UPDATES = 3
LEARNED_SIGNS = 20
ENDED_FACTOR = 0.2
"""Share of the floor: how long the others may stay silent after a rank ended well."""


class Progress:
    """Signs of life of one run. `floor` is the shortest silence that counts as standing still."""

    def __init__(self, now: float, floor: float = FLOOR_SECONDS) -> None:
        self._floor = floor
        self._last = now
        self._gaps: deque[tuple[float, float]] = deque()
        self._signs = self._updates = 0
        self._alone = False

    def sign(self, now: float, *, update: bool = False) -> float:
        """Note output, or the metrics of an update; return the silence before it."""
        gap = now - self._last
        if self._learned:
            self._gaps.append((now, gap))
        self._signs += 1
        self._updates += update
        self._last = now
        return gap

    def ended_well(self, now: float) -> None:
        """Note that a rank exited with 0 while others still run; they should soon exit, too, or write something."""
        if not self._alone:
            self._alone, self._last = True, now

    def silence(self, now: float) -> float:
        """Seconds since the last sign of life."""
        return now - self._last

    def limit(self, now: float) -> float:
        """The silence after which a run counts as stalled."""
        if self._alone:
            return self._floor * ENDED_FACTOR
        if not self._learned:
            return self._floor * FIRST_FACTOR
        while self._gaps and now - self._gaps[0][0] > WINDOW_SECONDS:
            self._gaps.popleft()
        return max(self._floor, SLOWEST_FACTOR * max((gap for _, gap in self._gaps), default=0.0))

    @property
    def known(self) -> bool:
        """Whether the run has shown how often it writes; some scripts write nothing."""
        return self._updates > 0 or self._learned or self._alone

    @property
    def _learned(self) -> bool:
        # Output alone (a foreign script's) may all be from before the first update.
        return self._updates >= LEARNED_UPDATES or self._signs >= LEARNED_SIGNS
