"""The ranks' memory over time as curves: one per rank if they are few, else the lowest and the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz.message import Message, say
from trainwiz.quantities import whole
from trainwiz.record.metrics import Record, Series, number, series

_FEW = 3
"""The number of colors that a chart has."""
_MINUTES = 600.0
"""Seconds; longer times are shown in minutes."""
_GIB = 2**30

Sample = Mapping[str, Any]
"""One line of memory.jsonl: `at` in seconds since the epoch, `host` and, with GPUs, `gpu` in bytes by rank."""


def in_minutes(samples: Sequence[Sample]) -> bool:
    """Whether the time is shown in minutes rather than in seconds."""
    times = [at for sample in samples if (at := number(sample.get("at"))) is not None]
    return bool(times) and times[-1] - times[0] >= _MINUTES


def curves(samples: Sequence[Sample], where: str, began: float | None) -> list[tuple[Message, Series]]:
    """GiB over the time since `began` (default: the first sample), for `where`, which is host or gpu."""
    unit = 60.0 if in_minutes(samples) else 1.0
    rows: list[tuple[float, dict[int, float]]] = []
    for sample in samples:
        at, held = number(sample.get("at")), sample.get(where)
        if at is not None and isinstance(held, Mapping):
            began = at if began is None else began
            of_rank = {
                n: b / _GIB for rank, b in held.items() if (n := whole(rank)) is not None and number(b) is not None
            }
            rows.append(((at - began) / unit, of_rank))
    ranks = sorted({rank for _, held in rows for rank in held})
    if len(ranks) <= _FEW:
        return [(say("rank {rank}", rank=rank), [(x, held.get(rank)) for x, held in rows]) for rank in ranks]
    return [
        (say("maximum over all ranks"), [(x, max(held.values(), default=None)) for x, held in rows]),
        (say("minimum over all ranks"), [(x, min(held.values(), default=None)) for x, held in rows]),
    ]


def of_torch(records: Sequence[Record]) -> list[tuple[Message, Series]]:
    """GiB that PyTorch has on the GPU with the most, over the updates."""
    names = {"allocated": say("in tensors"), "reserved": say("reserved"), "peak": say("peak in tensors")}
    return [
        (name, [(x, y and y / _GIB) for x, y in series(records, f"gpu_memory_{key}_bytes")])
        for key, name in names.items()
    ]


def most(samples: Sequence[Sample], before: Mapping[int, int] | None = None) -> dict[int, int]:
    """The highest host memory of each rank in any sample, in bytes, and in those of `before`."""
    found: dict[int, int] = dict(before or {})
    for sample in samples:
        held = sample.get("host")
        for rank, count in held.items() if isinstance(held, Mapping) else ():
            if (of_rank := whole(rank)) is not None and isinstance(count, int):
                found[of_rank] = max(count, found.get(of_rank, 0))
    return found
