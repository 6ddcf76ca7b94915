"""How long a training is in updates, and which of a machine's GPUs it uses."""

from __future__ import annotations

from trainwiz.machine import Gpu, Machine
from trainwiz.plan import Plan
from trainwiz.project import Project


def total_updates(plan: Plan, project: Project | None = None) -> int | None:
    """Optimizer updates of the whole training; None where the number of samples decides and is unknown.

    An epoch is `ceil(samples / real batch)` updates: the generated loop fills the last real batch up.
    """
    if plan.schedule.train_strategy == "steps":
        return plan.schedule.n_steps
    samples = project.train.samples if project and project.train else None
    if samples is None or plan.schedule.n_epochs is None:
        return None
    return plan.schedule.n_epochs * -(-samples // plan.batch.real_batch_size)


def used_gpus(plan: Plan, machine: Machine) -> tuple[Gpu, ...]:
    """The GPUs that the plan's ranks run on; none where its device is another one."""
    return machine.gpus[: plan.machine.ranks_per_machine] if plan.machine.device == "cuda" else ()
