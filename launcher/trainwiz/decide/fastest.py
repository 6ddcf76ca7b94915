"""The row that `trainwiz plan` shows first is the default of strategy, micro-batch and recomputation."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from trainwiz.decide.candidates import Candidate, Place, candidates
from trainwiz.decide.decision import Decision
from trainwiz.decide.memory import smallest_gpu_bytes, work_of
from trainwiz.decide.real_batch import usual_real_batch
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.device import Work
from trainwiz.estimate.gpus import gpu_of
from trainwiz.models.activations import Checkpointing

_REAL, _MICRO = "batch.real_batch_size", "batch.per_device_batch_size"
_ACCUMULATION = "batch.gradient_accumulation_steps"
_SHIFT = 0.15
"""How far a default real batch may be from the usual one, as a share of it."""
OFFLOAD = "+offload"


# docs/decisions/wizard.md: The default is the first row of `trainwiz plan`
def fastest(d: Decision, only: str | None = None) -> Candidate | None:
    """The best way to train what is decided so far, with this strategy or with any.

    None where nothing fits, and where no time can be foretold: on a CPU, and for a GPU or a model that is not known.
    """
    place = _place(d)
    if place is None or d.transformer is None:
        return None
    samples, accumulation = _given_samples(d, place.ranks), d.answers.get(_ACCUMULATION) or 1
    # A chunk that suits one strategy is too large for another, so it is decided last.
    work = replace(work_of(d), optimizer_offloaded=False, parameters_offloaded=False, checkpointing="none", loss=Loss())
    how = d.answers.get("model.activation_checkpointing")
    real_batch = d.answers.get(_REAL) or _real_batch(d, place.ranks, (samples or 1) * accumulation)
    found = _candidates(work, place, max(1, real_batch // accumulation), only, samples, how)
    return found[0] if found and found[0].why_not is None else None


def label(d: Decision) -> str | None:
    """The strategy that was decided, as a row is called; None where no row keeps what it keeps in host memory."""
    optimizer = d.values["strategy.offload_optimizer_device"] != "none"
    weights = d.values["strategy.offload_param_device"] != "none"
    if weights != (optimizer and d.strategy.partitions_weights):
        return None
    return f"{d.strategy.label}{OFFLOAD * optimizer}"


def _place(d: Decision) -> Place | None:
    memory = smallest_gpu_bytes(d)
    gpu = gpu_of(d.machine) if d.machine and memory else None
    if d.machine is None or memory is None or gpu is None:
        return None
    ranks = d.values["machine.num_processes"]
    return Place(
        memory_bytes=memory,
        gpu=gpu,
        ranks=ranks,
        ranks_per_machine=max(1, ranks // d.values["machine.num_machines"]),
        host_bytes=d.machine.memory.total_bytes or None,
    )


@lru_cache(maxsize=64)
def _candidates(
    work: Work, place: Place, real_batch: int, only: str | None, samples: int | None, how: Checkpointing | None
) -> tuple[Candidate, ...]:
    return candidates(work, place, real_batch, only=only, samples=samples, checkpointing=how)


def _given_samples(d: Decision, ranks: int) -> int | None:
    """The micro-batch, if the answers leave no choice."""
    if d.given(_REAL) and d.given(_ACCUMULATION) and not d.given(_MICRO):
        return max(1, int(d.answers[_REAL]) // int(d.answers[_ACCUMULATION]) // ranks)
    return d.answers.get(_MICRO)


def _real_batch(d: Decision, ranks: int, step: int) -> int:
    """The usual one, or a number near it of which each rank's part can be divided more often."""
    target, _ = usual_real_batch(d)
    each = target / (ranks * step)
    near = range(math.ceil((1 - _SHIFT) * each), math.floor((1 + _SHIFT) * each) + 1)
    part = max(near, key=lambda n: (n & -n, -abs(n - each)), default=round(each))
    return max(1, part) * ranks * step
