"""What a run's metrics have shown so far, for its live line and its summary."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainwiz.store.jsonl import JsonLines


class Remembered:
    """Metrics with the first and the last that came, for the summary."""

    def __init__(
        self, metrics: JsonLines, hear: Callable[[Sequence[Mapping[str, Any]]], None] = lambda _records: None
    ) -> None:
        """`hear` is given each record once."""
        self._metrics, self._hear = metrics, hear
        self.first: Mapping[str, Any] = {}
        self.last: Mapping[str, Any] = {}
        self.began = time.monotonic()
        self.first_update_seconds: float | None = None
        self.peak = Peak()

    def update(self) -> int:
        """The last update that was trained; 0 before the first."""
        self.new()
        update = self.last.get("update")
        return update if isinstance(update, int) else 0

    def new(self) -> Sequence[Mapping[str, Any]]:
        lines: Sequence[Mapping[str, Any]] = self._metrics.new()
        for line in lines:
            if isinstance(line.get("loss"), (int, float)):
                if not self.first:
                    self.first, self.first_update_seconds = line, round(time.monotonic() - self.began, 1)
                self.last = line
        self._hear(lines)
        return lines


class Peak:
    """The most memory that any one process of the training held, as the kernel counts it."""

    def __init__(self) -> None:
        self._before = self._now()

    def bytes(self) -> int | None:
        """None where a probe before the training held more, which cannot be told apart."""
        now = self._now()
        return now if now > self._before else None

    def _now(self) -> int:
        # In KiB on Linux: https://man7.org/linux/man-pages/man2/getrusage.2.html
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
