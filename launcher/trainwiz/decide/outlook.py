"""What a plan means before it runs: samples, updates, memory and time, as far as they can be forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwiz import strategies
from trainwiz.decide.amount import samples_of
from trainwiz.decide.column_roles import Part, guessed, parts, proposed
from trainwiz.decide.columns import shown_columns
from trainwiz.decide.decision import Decision
from trainwiz.decide.first_sample import Turn, turns
from trainwiz.decide.length import updates_of
from trainwiz.decide.memory import smallest_gpu_bytes
from trainwiz.decide.row_lengths import Lengths, of_rows
from trainwiz.estimate import estimate
from trainwiz.estimate.gpus import gpu_of
from trainwiz.estimate.speed import pace
from trainwiz.estimate.state import work_of
from trainwiz.tasks.chat_columns import renamed

if TYPE_CHECKING:
    from trainwiz.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Forecasts; None for what is unknown."""

    parameters: int | None = None
    """Of the model, frozen ones included."""
    samples: int | None = None
    """About how many are trained on."""
    turns: tuple[Turn, ...] = ()
    """The first conversation of the data, where it is one and can be read."""
    columns: tuple[tuple[str, str], ...] = ()
    """The columns of the data's first row, and the beginning of what stands there."""
    parts: tuple[Part, ...] = ()
    """What is read from that row."""
    guessed: frozenset[str] = frozenset()
    """Keys of columns whose names do not say what they hold."""
    proposed: Mapping[str, str] = field(default_factory=dict)
    """What keys of columns may be where the plan cannot decide them."""
    lengths: Lengths | None = None
    """How long the texts of the data are; None where they are not the person's own, or could not be read."""
    updates: int | None = None
    """Of the whole training."""
    tokens: int | None = None
    """Of the whole training, padding included; None for samples that are not text."""
    peak_bytes: int | None = None
    """The most that is in the memory of a GPU at any moment."""
    memory_bytes: int | None = None
    """The memory of the smallest GPU."""
    host_bytes: int | None = None
    """Host memory of each machine for what is kept there instead of on its GPUs."""
    checkpoint_bytes: int | None = None
    """Disk for one checkpoint."""
    seconds: float | None = None
    """Of the whole training."""
    cost: float | None = None
    """Of the whole training, in the currency in which a GPU-hour was priced; None without a price."""


def outlook(d: Decision, plan: Plan) -> Outlook:
    """The forecasts for a plan that was decided."""
    updates = updates_of(d)
    each = plan.batch.real_batch_size * plan.batch.sequence_length if d.task.from_hub else None
    known: dict[str, Any] = {
        "parameters": d.parameters,
        "samples": samples_of(d),
        "turns": turns(renamed(d.first, d.values["data.columns"])) if d.task.talks else (),
        "columns": shown_columns(d),
        "parts": parts(d),
        "guessed": guessed(d),
        "proposed": proposed(d),
        "lengths": of_rows(d, plan.batch.sequence_length),
        "updates": updates,
        "tokens": updates * each if updates and each else None,
    }
    if d.parameters is None:
        return Outlook(**known)
    needed, per_update = estimate(plan, d.parameters, d.transformer), _seconds_of_update(d, plan)
    memory = smallest_gpu_bytes(d)
    return Outlook(
        **known,
        peak_bytes=needed.peak_bytes_per_rank if memory else None,
        memory_bytes=memory,
        host_bytes=needed.host_bytes_per_machine if memory else None,
        checkpoint_bytes=needed.checkpoint_bytes,
        seconds=per_update * updates if per_update and updates else None,
    )


def _seconds_of_update(d: Decision, plan: Plan) -> float | None:
    gpu = gpu_of(d.machine) if d.machine and not d.on_cpu else None
    if gpu is None or d.parameters is None:
        return None
    found = pace(
        strategies.of(plan),
        work_of(plan, d.parameters, d.transformer),
        gpu,
        accumulation=plan.batch.gradient_accumulation_steps,
        ranks_per_machine=plan.machine.ranks_per_machine,
    )
    return found.seconds if found else None
