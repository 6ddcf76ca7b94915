"""Output that waits: a traceback of rank 0 is shown once it is known whether rank 0 failed by itself.

If another rank dies, rank 0 loses its connection, and its traceback of gloo or NCCL would come before the card that
names the cause. It stays in the rank's log in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_BEGINNING = b"Traceback (most recent call last)"
_MOST_SECONDS = 5.0
"""A rank that goes on after a traceback is not about to end."""
_MOST_BYTES = 1 << 16


class TracebackFilter:
    """Passes output on, except for what follows the beginning of a traceback."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._kept, self._since = clock, b"", 0.0

    def feed(self, data: bytes) -> bytes:
        """The part of the new output, and of what was held, to show now."""
        if self._kept:
            self._kept += data
            return self.overdue()
        found = data.find(_BEGINNING)
        if found < 0:
            return data
        start = data.rfind(b"\n", 0, found) + 1
        self._kept, self._since = data[start:], self._clock()
        return data[:start] + self.overdue()

    def overdue(self) -> bytes:
        """What was held for too long, or is too much."""
        late = self._clock() - self._since > _MOST_SECONDS or len(self._kept) > _MOST_BYTES
        return self.flush() if self._kept and late else b""

    def flush(self) -> bytes:
        """Everything that is held; then nothing is held any more."""
        kept, self._kept = self._kept, b""
        return kept
