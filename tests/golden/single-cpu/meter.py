"""Speed, the wait for data and GPU memory between two records, measured without waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from batches import Agreement

if TYPE_CHECKING:
    from train import Config

MicroBatch = tuple[Any, int]


class Meter:
    """Fetches micro-batches, and measures the time since the last record, without evaluations and saving."""

    def __init__(self, config: Config, agreement: Agreement, batches: Iterable[MicroBatch]) -> None:
        self.agreement, self.batches, self.micro_batches = agreement, iter(batches), config.gradient_accumulation_steps
        self.began, self.waited, self.count = time.perf_counter(), 0.0, 0

    def fetch(self) -> list[MicroBatch]:
        """Return the micro-batches of the next update."""
        began = time.perf_counter()
        fetched = [next(self.batches) for _ in range(self.micro_batches)]
        self.waited += time.perf_counter() - began
        return fetched

    def record(self) -> dict[str, float]:
        """Return what was measured, over all ranks, and begin again. All ranks call it together."""
        seconds = time.perf_counter() - self.began
        count, waited = self.count, self.waited
        self.began, self.waited, self.count = time.perf_counter(), 0.0, 0
        numbers = [waited / seconds]
        ranks = self.agreement.collect(numbers)
        of_slowest = [max(column) for column in zip(*ranks, strict=True)]
        return {
            "tokens_per_second": count / seconds,
            "data_wait_share": of_slowest[0],
        }
