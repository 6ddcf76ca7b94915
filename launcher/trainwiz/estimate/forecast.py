"""The memory and time that a run is expected to need, stored and compared with what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz import strategies, tasks
from trainwiz.estimate.datasheets import GpuModel
from trainwiz.estimate.device import Needs, Work, needs, offloaded_activations, offloaded_frozen, training_of
from trainwiz.estimate.loading import load_bytes
from trainwiz.estimate.reserve import reserved_bytes
from trainwiz.estimate.speed import pace
from trainwiz.estimate.state import estimate, staged_bytes, work_of
from trainwiz.models import Transformer
from trainwiz.strategies import Strategy
from trainwiz.tasks import Task

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_PROCESS = 345 * 2**20
"""Host memory of a rank on the CPU before its model: Python, torch, accelerate, gloo, and an optimizer's first step.

Seen with torch 2.13 and accelerate 1.15; so is the next one. What an engine adds is in `Strategy.library_bytes`. Where
the model is about to be built, 235 MiB are resident, 265 with transformers 5.23, 298 with DeepSpeed 0.19 as well; of
these, 152, 180 and 209 are private.
"""
_TRANSFORMERS = 105 * 2**20
"""What transformers adds to that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Of one run; None: nothing is known about it."""

    parameters: int
    """Of the model, frozen ones included."""
    allocated_bytes: int | None = None
    """The most that tensors take of a rank's GPU."""
    reserved_bytes: int | None = None
    """The allocator's blocks that they lie in."""
    moment: str = ""
    """The moment of that peak, of `estimate.device.Moment`; on the CPU that of `host_bytes`."""
    parts: Mapping[str, int] | None = None
    """What is in memory then: state, buffers, activations."""
    layers_known: bool = True
    """Whether activations and speed are in it."""
    host_bytes: int | None = None
    """The most host memory of any rank."""
    seconds_per_update: float | None = None
    """From the beginning of one update to that of the next, on average."""
    seconds: Mapping[str, float] | None = None
    """Their parts: compute, memory, launches, communication, step."""
    checkpoint_bytes: int | None = None
    """Of one checkpoint, over all ranks."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `outcome.json` keeps them."""
        return {name: getattr(self, name) for name in self.__slots__}


def forecast(plan: Plan, parameters: int, transformer: Transformer | None, gpu: GpuModel | None) -> Forecast:
    """The forecast of a plan's run; `gpu` is None on the CPU, and where its speed is unknown."""
    strategy, work = strategies.of(plan), work_of(plan, parameters, transformer)
    need = needs(strategy, work)
    on_cpu = plan.machine.device == "cpu"
    known = work.layers_known
    speed = None
    if gpu and not on_cpu:
        speed = pace(
            strategy,
            work,
            gpu,
            accumulation=plan.batch.gradient_accumulation_steps,
            ranks_per_machine=plan.machine.ranks_per_machine,
            compiled=plan.model.compile,
        )
    checkpoint = estimate(plan, parameters, transformer).checkpoint_bytes
    copied = staged_bytes(plan, checkpoint) // (plan.machine.ranks_per_machine if strategy.partitions_weights else 1)
    beside = copied + offloaded_activations(strategy, work)
    beside += offloaded_frozen(strategy, work) if plan.strategy.offload_param_device == "cpu" else 0
    offloaded = strategy.host_bytes_per_parameter(
        plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device
    )
    beside += offloaded * training_of(work).parameters // plan.machine.num_processes
    return Forecast(
        parameters=parameters,
        allocated_bytes=None if on_cpu else need.total,
        reserved_bytes=None if on_cpu else int(reserved_bytes(need.total)),
        moment=need.peak,
        parts=dict(need.moments[need.peak]),
        layers_known=known,
        host_bytes=host_bytes(
            strategy,
            work,
            task=tasks.of(plan),
            built=load_bytes(plan, parameters, transformer) // plan.machine.ranks_per_machine,
            beside=beside,
        )
        if on_cpu
        else None,
        seconds_per_update=speed.seconds if speed else None,
        seconds={name: getattr(speed, name) for name in ("compute", "memory", "launches", "communication", "step")}
        if speed
        else None,
        checkpoint_bytes=checkpoint,
    )


def host_bytes(strategy: Strategy, work: Work, *, task: Task, built: int, beside: int = 0) -> int:
    """Of a rank on the CPU: where its device's memory is the host's.

    `built` is the model while it is loaded, `beside` what is kept in host memory on any device.
    """
    process = _PROCESS + (_TRANSFORMERS if task.from_hub else 0) + strategy.library_bytes
    beside += strategy.offload_buffer_bytes(training_of(work)) if work.optimizer_offloaded else 0
    return process + max(built, _moments_together(needs(strategy, work)) + _tables(strategy, work) + beside)


def _moments_together(need: Needs) -> int:
    """The C library keeps what is freed in pieces under 32 MiB, and so what each moment needs adds up."""
    names = {name for parts in need.moments.values() for name in parts}
    return sum(max(parts.get(name, 0) for parts in need.moments.values()) for name in names)


def _tables(strategy: Strategy, work: Work) -> int:
    """Bytes of gradients as large as the embeddings that come and go.

    Seen in the resident memory of one and two ranks, for 23M to 124M parameters, with torch 2.13.
    """
    shape = work.transformer
    if shape is None or work.adapter != "none":
        return 0
    return 4 * shape.largest_table * strategy.tables_on_host(tied=work.tied_head)
