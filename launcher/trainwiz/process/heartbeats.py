"""Read the ranks' heartbeats: whether they make progress, and which rank keeps the others waiting.

`inside/sitecustomize.py` looks at its rank's main thread once a second and counts: looks, looks that found it waiting
for other ranks, and looks since which it had moved. No rank is signalled or stopped for it.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwiz.record import beat
from trainwiz.record.beat import Beat

WINDOW_SECONDS = 60.0
"""How long a rank must keep the others waiting, twice in a row, before it is reported."""
WAITED_SHARE = 0.3
"""The share of looks that find each other rank waiting, minus that of the slow rank. Less than this is the ordinary
unevenness of batches and caches; what the slow rank has as well is the time that collectives take."""
_KEPT = 4096
_LEAST_MOVES = 2
_LEAST_BEATS = 0.5
"""Beats per second: a rank with fewer was in native code, which cannot be observed."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that is alive, and slower than the others."""

    rank: int
    """The slow rank."""
    share: float
    """The part of the time that the others waited, 0 to 1."""
    seconds: float
    """How long that lasted."""
    place: str
    """Where the rank was most of that time."""

    def to_dict(self) -> dict[str, object]:
        """Plain values, for `outcome.json`."""
        return {"rank": self.rank, "share": round(self.share, 2), "seconds": round(self.seconds), "place": self.place}


def silent_seconds(folder: Path, ranks: Sequence[int], beside: Sequence[int]) -> float | None:
    """Seconds since any of the ranks wrote a beat, by the times of those of `beside` in the same folder.

    None if one side has not written any.
    """
    theirs, ours = ([*_written(folder, some)] for some in (ranks, beside))
    return max(ours) - max(theirs) if theirs and ours else None


def _written(folder: Path, ranks: Sequence[int]) -> Iterator[float]:
    for rank in ranks:
        with contextlib.suppress(OSError):
            yield (folder / f"rank-{rank}.beat").stat().st_mtime


class Heartbeats:
    """The beats of one world's ranks, which write them into `folder`. Call `read` once for each tick of a clock."""

    def __init__(self, folder: Path, ranks: Sequence[int], window: float = WINDOW_SECONDS) -> None:
        self._folder, self._ranks, self._window = folder, ranks, window
        self._history: deque[tuple[float, dict[int, Beat]]] = deque(maxlen=_KEPT)
        self._late: int | None = None
        self._told: set[int] = set()

    def read(self, now: float) -> bool:
        """Read all beats; return whether any rank has moved since the last call."""
        beats = {rank: found for rank in self._ranks if (found := self._beat(rank))}
        before = self._history[-1][1] if self._history else {}
        if before or len(beats) == len(self._ranks):  # the first window begins when all do
            self._history.append((now, beats))
        return any(each.moves != before[rank].moves for rank, each in beats.items() if rank in before)

    def due(self, now: float) -> bool:
        """Whether a window is full, so that `straggler` is to be asked."""
        return bool(self._history) and now - self._history[0][0] >= self._window

    def straggler(self, *, moving: bool) -> Straggler | None:
        """The rank that has kept the others waiting in two windows in a row, once for each rank.

        `moving`: whether the training came on in this window. Where it did not, rank 0 may rightly work alone.
        """
        found = self._slow() if moving else None
        before, self._late = self._late, found.rank if found else None
        self._history = deque([self._history[-1]], maxlen=_KEPT)
        if found is None or found.rank != before or found.rank in self._told:
            return None
        self._told.add(found.rank)
        return found

    def _slow(self) -> Straggler | None:
        (began, first), (ended, last) = self._history[0], self._history[-1]
        shares = {}
        for rank in self._ranks:
            before, after = first.get(rank), last.get(rank)
            if before is None or after is None or after.looks - before.looks < _LEAST_BEATS * (ended - began):
                return None
            shares[rank] = (after.waits - before.waits) / (after.looks - before.looks)
        slow = min(shares, key=lambda rank: shares[rank])
        waited = min((share for rank, share in shares.items() if rank != slow), default=0.0) - shares[slow]
        if waited < WAITED_SHARE:
            return None
        if last[slow].moves - first[slow].moves < _LEAST_MOVES:
            return None  # that one hangs, which is reported elsewhere
        places = Counter(beats[slow].place for _, beats in self._history if slow in beats)
        return Straggler(rank=slow, share=waited, seconds=2 * (ended - began), place=places.most_common(1)[0][0])

    def _beat(self, rank: int) -> Beat | None:
        with contextlib.suppress(OSError, ValueError):
            return beat.parsed((self._folder / f"rank-{rank}.beat").read_text("utf-8", "replace"))
        return None
