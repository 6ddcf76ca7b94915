"""Every way to train a model on some GPUs: whether it fits, how fast it is, and what keeps it from fitting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trainwiz import quantities, strategies
from trainwiz.decide.memory import ROOMY
from trainwiz.estimate.datasheets import GpuModel
from trainwiz.estimate.device import (
    Moment,
    Needs,
    Work,
    needs,
    offloaded_activations,
    offloaded_frozen,
    training_of,
    whole_four_bits,
)
from trainwiz.estimate.disk import checkpoint_bytes
from trainwiz.estimate.reserve import FILLED
from trainwiz.estimate.speed import Pace, pace
from trainwiz.message import Message, say
from trainwiz.models.activations import Checkpointing
from trainwiz.strategies import Strategy

_OFFLOAD = "+offload"
_LARGEST_MICRO_BATCH = 64
NEAR = 1.1
"""Times that differ by less than this are the same to a forecast: in the order measured in 48 of 113 published pairs,
where of those that differ more 188 of 192 are (docs/forecast.md)."""
_ON_HOST = 1.25
"""What the time of offloaded state counts more: it depends on the host's memory and cores, which are hardly known."""
_RECOMPUTED: Mapping[Checkpointing, float] = {"none": 1.0, "selective": 1.05, "full": 1.15, "offload": 1.25}
"""The same for what is computed again: a larger micro-batch saves launches, which the GPU's work may hide anyway."""
_UNRANKED = 4
"""The position of a strategy that has none: FSDP is as fast as ZeRO 3."""
MOMENTS: dict[Moment, Message] = {
    "loss": say("while the loss is computed"),
    "backward": say("in the backward pass of a layer"),
    "reduction": say("when the last gradients are reduced"),
    "step": say("in the optimizer's step"),
}
"""When memory can be at its peak, in the order of an update."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The GPUs to train on."""

    memory_bytes: int
    """Of the smallest GPU."""
    gpu: GpuModel | None
    """What is known of its speed."""
    ranks: int
    """Over all machines: one for each GPU."""
    ranks_per_machine: int
    """On each machine: `ranks` over the number of machines."""
    host_bytes: int | None = None
    """Memory of each machine; None where it is unknown."""
    memory_factor: float = 1.0
    """Measured peaks of these GPUs' own runs, as a share of their forecasts; below 1 it counts as 1."""
    time_factor: float = 1.0
    """The same of the time of an update."""
    power_watts: float | None = None
    """What one GPU may draw at most; None where NVML did not say it."""

    @property
    def usable_bytes(self) -> int:
        """What tensors may take; the CUDA context and gaps between blocks need the rest."""
        return int(FILLED * self.memory_bytes)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train."""

    name: str
    """The strategy's label, with `+offload` where that is meant."""
    strategy: Strategy
    """The strategy's row."""
    work: Work
    """The model with this precision, adapter and checkpointing."""
    accumulation: int
    """Micro-batches of a rank in an update."""
    need: Needs
    """Bytes of a rank, by moment of an update."""
    pace: Pace | None
    """None where the GPU or the model's layers are unknown."""
    peak_bytes: int
    """The peak of a rank, corrected by the runs of these GPUs."""
    time_factor: float
    """What corrects `pace` in the same way."""
    host_bytes: int
    """Memory of each machine for offloaded state and activations."""
    checkpoint_bytes: int
    """Of one checkpoint, over all ranks."""
    why_not: Message | None
    """What keeps it from fitting."""

    @property
    def peak(self) -> Message:
        """The moment of the peak, in words."""
        return MOMENTS[self.need.peak]

    @property
    def rank(self) -> tuple[int, int]:
        """Its position among strategies, by speed, where no time tells them apart; then by memory."""
        row = self.strategy
        usual = row.offload_speed if self.work.optimizer_offloaded else row.speed
        beside = row.four_bit_speed if self.work.adapter == "qlora" else None
        return usual or beside or _UNRANKED, self.peak_bytes

    @property
    def seconds(self) -> float:
        """Of an update; infinite where that is unknown."""
        return self.pace.seconds * self.time_factor if self.pace else float("inf")

    @property
    def weighed_seconds(self) -> float:
        """The time by which rows are compared."""
        return self.seconds * (_ON_HOST if self.work.optimizer_offloaded else 1) * _RECOMPUTED[self.work.checkpointing]

    @property
    def tokens_per_second(self) -> float | None:
        """Of one rank."""
        return self.pace.tokens_per_second / self.time_factor if self.pace else None


def candidates(
    work: Work,
    place: Place,
    real_batch: int,
    *,
    only: str | None = None,
    samples: int | None = None,
    checkpointing: Checkpointing | None = None,
) -> tuple[Candidate, ...]:
    """The best way with each strategy, the fastest first; behind them those that do not fit, the leanest first.

    `only` is the label of the one strategy that is wanted, `samples` the micro-batch and `checkpointing` the one that
    is given; None: whatever is best.
    """
    micro_batches = [samples] if samples else _micro_batches(real_batch, place.ranks)
    ways = [checkpointing] if checkpointing else list(_RECOMPUTED)
    found = [
        _best(
            [_candidate(row, work, place, offload, way, size, real_batch) for size in micro_batches for way in ways],
            place,
        )
        for row, offload in _rows(place.ranks, only)
        if only in (None, row.label + _OFFLOAD * offload)
    ]
    fitting = _by_speed([one for one in found if one.why_not is None])
    others = sorted((one for one in found if one.why_not is not None), key=lambda one: one.peak_bytes)
    return (*fitting, *others)


def _rows(ranks: int, only: str | None) -> Iterator[tuple[Strategy, bool]]:
    """Every strategy, without its offload and with it."""
    for row in strategies.every():
        if row.one_rank == (ranks == 1) and (row.speed or row.uses_fsdp or row.label == only):
            yield row, False
        if row.offload_speed:
            yield row, True


def _by_speed(fitting: list[Candidate]) -> list[Candidate]:
    """The fastest first; of those that are as fast as it is, the simplest strategy."""
    fastest = min((one.weighed_seconds for one in fitting), default=0.0)
    near = [one for one in fitting if one.weighed_seconds <= NEAR * fastest]
    behind = [one for one in fitting if one.weighed_seconds > NEAR * fastest]
    return [*sorted(near, key=lambda one: one.rank), *sorted(behind, key=lambda one: (one.weighed_seconds, one.rank))]


def _best(tried: list[Candidate], place: Place) -> Candidate:
    """The fastest that fits, or the one that needs least.

    Where the fastest fills its GPU, another one that is as fast and leaves room is better, or else the leanest of them.
    """
    fitting = [one for one in tried if one.why_not is None]
    if not fitting:
        return min(tried, key=lambda one: one.peak_bytes)
    fastest = min(one.weighed_seconds for one in fitting)
    near = [one for one in fitting if one.weighed_seconds <= NEAR * fastest]
    roomy = [one for one in near if one.peak_bytes <= ROOMY * place.memory_bytes]
    return min(roomy, key=lambda one: one.weighed_seconds) if roomy else min(near, key=lambda one: one.peak_bytes)


def _micro_batches(real_batch: int, ranks: int) -> list[int]:
    """All that divide a rank's part of the real batch; 1 where it has no whole part."""
    each = real_batch // ranks if real_batch % ranks == 0 else 1
    return [size for size in range(1, min(each, _LARGEST_MICRO_BATCH) + 1) if each % size == 0]


def _candidate(
    row: Strategy, work: Work, place: Place, offload: bool, how: Checkpointing, samples: int, real_batch: int
) -> Candidate:
    accumulation = max(1, real_batch // (samples * place.ranks))
    weights = offload and row.partitions_weights
    work = replace(
        work,
        world=place.ranks,
        samples=samples,
        checkpointing=how,
        accumulates=accumulation > 1,
        whole_gradients=False,
        optimizer_offloaded=offload,
        parameters_offloaded=weights,
    )
    need = needs(row, work)
    each = row.host_bytes_per_parameter("cpu" if offload else "none", "cpu" if weights else "none")
    machines = -(-place.ranks // place.ranks_per_machine)
    host = each * training_of(work).parameters // machines
    host += (offloaded_activations(row, work) + offloaded_frozen(row, work)) * min(place.ranks, place.ranks_per_machine)
    speed = None
    if place.gpu:
        speed = pace(row, work, place.gpu, accumulation=accumulation, ranks_per_machine=place.ranks_per_machine)
    peak = int(need.total * max(1.0, place.memory_factor))
    return Candidate(
        name=row.label + _OFFLOAD * offload,
        strategy=row,
        work=work,
        accumulation=accumulation,
        need=need,
        pace=speed,
        peak_bytes=peak,
        time_factor=place.time_factor,
        host_bytes=host,
        checkpoint_bytes=checkpoint_bytes(row, work),
        why_not=_why_not(need, peak, place, host) or _too_large_to_load(row, work, place),
    )


def _why_not(need: Needs, peak: int, place: Place, host: int) -> Message | None:
    if peak > place.usable_bytes:
        return say(
            "needs {need} {moment}; {usable} of {memory} can be used",
            need=quantities.size(peak),
            moment=MOMENTS[need.peak],
            usable=quantities.size(place.usable_bytes),
            memory=quantities.size(place.memory_bytes),
        )
    if place.host_bytes and host > place.host_bytes:
        return say(
            "needs {need} of host memory on each machine, which has {memory}",
            need=quantities.size(host),
            memory=quantities.size(place.host_bytes),
        )
    return None


def _too_large_to_load(row: Strategy, work: Work, place: Place) -> Message | None:
    """Weights in four bits are whole on each GPU before ZeRO 3 cuts them (TW329)."""
    whole = whole_four_bits(row, work)
    if whole <= place.usable_bytes:
        return None
    return say(
        "loads all weights in four bits, {need}, on each GPU before it shards them; {usable} of {memory} can be used",
        need=quantities.size(whole),
        usable=quantities.size(place.usable_bytes),
        memory=quantities.size(place.memory_bytes),
    )
