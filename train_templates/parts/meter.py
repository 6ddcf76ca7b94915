"""Speed, the wait for data and GPU memory between two records, measured without waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Iterable

# feature: mfu
from collections.abc import Callable

# end: mfu
from typing import TYPE_CHECKING, Any

# feature: cuda
import torch

# end: cuda
from batches import Agreement

if TYPE_CHECKING:
    from train import Config

MicroBatch = tuple[Any, int]


class Meter:
    """Fetches micro-batches, and measures the time since the last record, without evaluations and saving."""

    # feature: mfu
    flops: Callable[[Any], float] | None = None
    """Returns the FLOPs that a micro-batch needs, as a share of what a GPU does in a second."""
    useful = 0.0
    # end: mfu

    def __init__(self, config: Config, agreement: Agreement, batches: Iterable[MicroBatch]) -> None:
        self.agreement, self.batches, self.micro_batches = agreement, iter(batches), config.gradient_accumulation_steps
        self.began, self.waited, self.count, self.updates = time.perf_counter(), 0.0, 0, 0

    def fetch(self) -> list[MicroBatch]:
        """Return the micro-batches of the next update."""
        began = time.perf_counter()
        fetched = [next(self.batches) for _ in range(self.micro_batches)]
        self.waited += time.perf_counter() - began
        self.updates += 1
        # feature: mfu
        if self.flops is not None:
            self.useful += sum(self.flops(batch) for batch, _ in fetched)
        # end: mfu
        return fetched

    def record(self) -> dict[str, float]:
        """Return what was measured over all ranks, and reset. All ranks call it together."""
        seconds = time.perf_counter() - self.began
        count, waited, updates = self.count, self.waited, self.updates
        self.began, self.waited, self.count, self.updates = time.perf_counter(), 0.0, 0, 0
        numbers = [waited / seconds]
        # feature: cuda
        memory = torch.cuda.memory_stats()
        numbers += [memory.get(f"{name}_bytes.all.{when}", 0) for name, when in MEMORY.values()]
        # end: cuda
        # feature: mfu
        numbers.append(self.useful / seconds)
        self.useful = 0.0
        # end: mfu
        ranks = self.agreement.collect(numbers)
        of_slowest = [max(column) for column in zip(*ranks, strict=True)]
        return {
            "tokens_per_second": count / seconds,
            "seconds_per_update": seconds / updates,
            "data_wait_share": of_slowest[0],
            # feature: cuda
            **dict(zip(MEMORY, of_slowest[1:], strict=False)),
            # end: cuda
            # feature: mfu
            **({"mfu": sum(rank[-1] for rank in ranks) / len(ranks)} if self.flops else {}),
            # end: mfu
        }


# feature: cuda
MEMORY = {
    "gpu_memory_allocated_bytes": ("allocated", "current"),
    "gpu_memory_reserved_bytes": ("reserved", "current"),
    "gpu_memory_peak_bytes": ("allocated", "peak"),
}
"""Bytes in tensors now, reserved by PyTorch's allocator, and the peak in tensors; on the rank with the most."""
# end: cuda
