"""What the ranks' beats tell: whether they move, and which of them keeps the others waiting.

`inside/sitecustomize.py` looks at its rank's main thread once a second and counts: looks, those that found it waiting
for other ranks, and those since which it had moved. No rank is signalled or stopped for it.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WINDOW_SECONDS = 60.0
"""How long a rank must keep the others waiting, twice in a row, until it is named."""
WAITED_SHARE = 0.3
"""Of the looks at each other rank, beyond those at the slow one: found waiting. What is less is the ordinary unevenness
of batches and caches; what the slow rank has, too, is the time that collectives take."""
_KEPT = 4096
_LEAST_MOVES = 2
_LEAST_BEATS = 0.5
"""Of the seconds: a rank whose beats are fewer was in native code that lets nobody look."""


@dataclass(frozen=True)
class Beat:
    """One rank's counts so far, and where its own code is."""

    looks: int
    waits: int
    moves: int
    place: str


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank alive, and slower than the others: they waited a `share` of `seconds`, mostly while it was in `place`."""

    rank: int
    share: float
    seconds: float
    place: str

    def to_dict(self) -> dict[str, object]:
        """Plain values, for `outcome.json`."""
        return {"rank": self.rank, "share": round(self.share, 2), "seconds": round(self.seconds), "place": self.place}


class Beats:
    """The beats of one world's ranks. `folder` is where they write them to; `read` once for each tick of a clock."""

    def __init__(self, folder: Path, ranks: Sequence[int], window: float = WINDOW_SECONDS) -> None:
        self._folder, self._ranks, self._window = folder, ranks, window
        self._seen: deque[tuple[float, dict[int, Beat]]] = deque(maxlen=_KEPT)
        self._late: int | None = None
        self._told: set[int] = set()

    def read(self, now: float) -> bool:
        """Look at all; whether any rank has moved since."""
        beats = {rank: beat for rank in self._ranks if (beat := self._beat(rank))}
        before = self._seen[-1][1] if self._seen else {}
        if before or len(beats) == len(self._ranks):  # the first window begins when all do
            self._seen.append((now, beats))
        return any(beat.moves != before[rank].moves for rank, beat in beats.items() if rank in before)

    def due(self, now: float) -> bool:
        """Whether a window is full, so that `straggler` is to be asked."""
        return bool(self._seen) and now - self._seen[0][0] >= self._window

    def straggler(self, *, moving: bool) -> Straggler | None:
        """The rank that has kept the others waiting in two windows in a row, once for each rank.

        `moving`: whether the training came on in this window. Where it did not, rank 0 may rightly work alone.
        """
        found = self._slow() if moving else None
        before, self._late = self._late, found.rank if found else None
        self._begin_again()
        if found is None or found.rank != before or found.rank in self._told:
            return None
        self._told.add(found.rank)
        return found

    def _slow(self) -> Straggler | None:
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
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
            return None  # that one hangs, which is not for this to say
        places = Counter(beats[slow].place for _, beats in self._seen if slow in beats)
        return Straggler(rank=slow, share=waited, seconds=2 * (ended - began), place=places.most_common(1)[0][0])

    def _begin_again(self) -> None:
        newest = self._seen[-1]
        self._seen.clear()
        self._seen.append(newest)

    def _beat(self, rank: int) -> Beat | None:
        with contextlib.suppress(OSError, ValueError):
            looks, waits, moves, place = (
                (self._folder / f"rank-{rank}.beat").read_text("utf-8", "replace").split(" ", 3)
            )
            return Beat(int(looks), int(waits), int(moves), place.strip())
        return None
