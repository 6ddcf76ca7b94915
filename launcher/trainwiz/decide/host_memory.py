"""What fits into the memory of a machine without a GPU: the method, the ranks and the precision of CPU ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainwiz import strategies
from trainwiz.decide.decision import Decision
from trainwiz.decide.memory import work_of
from trainwiz.estimate.device import Work, needs, training_of
from trainwiz.estimate.forecast import host_bytes
from trainwiz.estimate.loading import bytes_built
from trainwiz.strategies import Strategy

LENGTH = 256
"""Tokens of a sample, short enough for a CPU."""
_RANKS = 2
"""More CPU ranks compete for cores; two already exercise everything in distributed training."""
_SHARE = 0.9
"""The part of the machine's memory that all ranks may take; the system and other programs need the rest."""
_DECIDED_LATER = ("model.lora_rank", "model.attention")
"""What the need depends on: the answer, or the usual value."""


@dataclass(frozen=True, kw_only=True)
class CpuWay:
    """A way to train on the CPU."""

    adapter: str
    """The adapter; `none`: all weights are trained."""
    precision: str
    """no or bf16, as `precision.mixed_precision` has it."""
    ranks: int
    """On each machine."""
    bytes_per_rank: int
    """With one sample, whose activations are computed again."""


def usual_ranks(d: Decision) -> int:
    """CPU ranks where memory does not matter."""
    return min(_RANKS, d.machine.cpu.usable_cores) if d.machine else 1


def room(d: Decision, ranks: int) -> int | None:
    """Host memory of each CPU rank; None on a GPU and where it is unknown."""
    memory = d.machine.memory.total_bytes if d.machine and d.on_cpu else 0
    return int(_SHARE * memory) // ranks if memory else None


# docs/decisions/wizard.md: A model that does not fit is trained with an adapter
def best_way(d: Decision) -> CpuWay | None:
    """All weights, LoRA, or LoRA beside weights in bf16: the first that fits, with more ranks before fewer.

    None where none does, nothing is known, or a strategy was chosen.
    """
    if d.parameters is None or any(key.startswith("strategy.") or key == "engine" for key in d.answers):
        return None
    return next((way for way in _ways(d) if way.bytes_per_rank <= (room(d, way.ranks) or 0)), None)


def way_of(d: Decision, adapter: str, precision: str = "no", ranks: int = 1) -> CpuWay:
    """What one way needs."""
    later = {key: d.answers.get(key, d.defaults[key]) for key in _DECIDED_LATER}
    settled = {"model.adapter": adapter, "precision.mixed_precision": precision, "machine.num_processes": ranks}
    trial = replace(d, values={**d.values, **later, **settled})
    work = replace(work_of(trial, d.answers.get("batch.sequence_length") or LENGTH), checkpointing="full")
    return CpuWay(adapter=adapter, precision=precision, ranks=ranks, bytes_per_rank=_bytes(trial, work))


def activation_room(d: Decision) -> int | None:
    """What a decided CPU rank has for the activations of its micro-batch; None where that is unknown."""
    there = room(d, max(1, d.values["machine.num_processes"] // d.values["machine.num_machines"]))
    if there is None or d.parameters is None:
        return None
    work = work_of(d)
    return (
        there - _bytes(d, work) + max(parts.get("activations", 0) for parts in needs(d.strategy, work).moments.values())
    )


def _ways(d: Decision) -> Iterator[CpuWay]:
    """Those that contradict no answer."""
    adapters = ["none", "lora"] if d.task.chats and not d.values["model.from_scratch"] else ["none"]
    told = d.answers.get("machine.num_processes")
    most = told // d.values["machine.num_machines"] if told else usual_ranks(d)
    for adapter in [d.answers["model.adapter"]] if d.given("model.adapter") else adapters:
        usual = ["no"] if adapter == "none" else ["no", "bf16"]
        for precision in [d.answers["precision.mixed_precision"]] if d.given("precision.mixed_precision") else usual:
            for ranks in [most] if told else range(most, 0, -1):
                yield way_of(d, adapter, precision, max(1, ranks))


def _bytes(d: Decision, work: Work) -> int:
    """As `trainwiz plan` counts."""
    one_rank = work.world == 1
    row = next(row for row in strategies.every() if row.speed == 1 and row.one_rank == one_rank)
    return process_bytes(d, d.strategy if "strategy.kind" in d.values else row, work)


def process_bytes(d: Decision, row: Strategy, work: Work) -> int:
    """All that a rank on the CPU takes: the process itself, the model while it is built, and the training."""
    whole = bytes_built(row, adapter=work.adapter, precision=work.precision) * work.parameters
    offloaded = row.host_bytes_per_parameter(
        "cpu" if work.optimizer_offloaded else "none", "cpu" if work.parameters_offloaded else "none"
    )
    beside = offloaded * training_of(work).parameters // work.world
    return host_bytes(row, work, task=d.task, built=0 if row.builds_once else whole, beside=beside)
