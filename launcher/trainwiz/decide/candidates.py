"""Every way to train a model on some GPUs: whether it fits, how fast it is, and what keeps it from fitting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainwiz import quantities, strategies
from trainwiz.decide.strategy import FILLED
from trainwiz.estimate.device import Moment, Needs, Work, needs, offloaded_activations, training_of
from trainwiz.estimate.disk import checkpoint_bytes
from trainwiz.estimate.gpus import GpuModel
from trainwiz.estimate.speed import Pace, pace
from trainwiz.message import Message, say
from trainwiz.models.activations import Checkpointing
from trainwiz.strategies import Strategy

_OFFLOAD = "+offload"
_CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full", "offload")
_LARGEST_MICRO_BATCH = 64
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
    ranks_per_machine: int
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
    work: Work
    accumulation: int
    need: Needs
    pace: Pace | None
    """None where the GPU or the model's layers are unknown."""
    peak_bytes: int
    """The peak of a rank, corrected by the runs of these GPUs."""
    time_factor: float
    """What corrects `pace` in the same way."""
    host_bytes: int
    """Memory of each machine for offloaded state and activations."""
    checkpoint_bytes: int
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
        return usual or _UNRANKED, self.peak_bytes

    @property
    def seconds(self) -> float:
        """Of an update; infinite where that is unknown."""
        return self.pace.seconds * self.time_factor if self.pace else float("inf")

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
    ways = [checkpointing] if checkpointing else _CHECKPOINTING
    found = [
        _best([_candidate(row, work, place, offload, way, size, real_batch) for size in micro_batches for way in ways])
        for row, offload in _rows(place.ranks)
        if only in (None, row.label + _OFFLOAD * offload)
    ]
    fitting = sorted((one for one in found if one.why_not is None), key=lambda one: (one.seconds, one.rank))
    others = sorted((one for one in found if one.why_not is not None), key=lambda one: one.peak_bytes)
    return (*fitting, *others)


def _rows(ranks: int) -> Iterator[tuple[Strategy, bool]]:
    for row in strategies.every():
        if row.one_rank == (ranks == 1) and (row.speed or row.uses_fsdp):
            yield row, False
        if row.offload_speed:
            yield row, True


def _best(tried: list[Candidate]) -> Candidate:
    """The fastest that fits, or the one that needs least."""
    fitting = [one for one in tried if one.why_not is None]
    return min(fitting, key=lambda one: one.seconds) if fitting else min(tried, key=lambda one: one.peak_bytes)


def _micro_batches(real_batch: int, ranks: int) -> list[int]:
    """Powers of two that the real batch is a multiple of; 1 where it is none of the ranks."""
    sizes = [2**n for n in range(_LARGEST_MICRO_BATCH.bit_length())]
    return [size for size in sizes if real_batch % (size * ranks) == 0] or [1]


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
    host += offloaded_activations(row, work) * min(place.ranks, place.ranks_per_machine)
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
        why_not=_why_not(need, peak, place, host),
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
