"""`trainwiz plan` without a GPU: the host memory and the disk that the training needs as it is."""

from __future__ import annotations

from trainwiz import quantities
from trainwiz.estimate import disk
from trainwiz.estimate.forecast import forecast
from trainwiz.estimate.state import work_of
from trainwiz.language import t
from trainwiz.machine import Machine
from trainwiz.plan import Plan, with_changes
from trainwiz.project import ModelFacts
from trainwiz.ui import console
from trainwiz.workflows.planning.request import PlanRequest


def show(request: PlanRequest, machine: Machine, plan: Plan, model: ModelFacts) -> int:
    """Print both; exit 1 where the memory of this machine is too small."""
    plan = with_changes(plan, {"machine.device": "cpu"})
    parameters = model.parameters or 0
    found = forecast(plan, parameters, model.transformer, None)
    ranks = plan.machine.ranks_per_machine
    each, checkpoint = found.host_bytes or 0, found.checkpoint_bytes or 0
    saved = plan.checkpoint
    made = disk.saves(plan.schedule.n_steps or 1, saved.checkpointing_steps)
    final = disk.final_bytes(work_of(plan, parameters, model.transformer))
    needed = disk.disk_bytes(checkpoint, final, made, saved.checkpoints_total_limit)
    there = machine.memory.total_bytes
    fits = not there or each * ranks <= there
    if request.json:
        console.data_json(
            {
                "model": plan.model.name,
                "device": "cpu",
                "ranks": ranks,
                "strategy": plan.strategy.label,
                "host_bytes_per_rank": each,
                "host_bytes_per_machine": each * ranks,
                "machine_bytes": there or None,
                "checkpoint_bytes": checkpoint,
                "disk_bytes": needed,
                "fits": fits,
            }
        )
        return 0 if fits else 1
    words = {
        "model": plan.model.name,
        "strategy": plan.strategy.label,
        "each": quantities.size(each),
        "all": quantities.size(each * ranks),
        "there": quantities.size(there) if there else "-",
        "ranks": ranks,
    }
    console.data(
        t(
            "{model} on the CPU, {strategy}: {each} of host memory per rank, ranks: {ranks}, {all} of {there} in total",
            **words,
        )
    )
    console.data(
        t("disk: {needed}, checkpoints of {each}", needed=quantities.size(needed), each=quantities.size(checkpoint))
    )
    if not fits:
        console.talk(t("it does not fit in the memory of this machine"), style="error")
    console.talk(t("there is no GPU here; to see the forecast for some: --gpus 1x4090, --gpus 8xH100"))
    return 0 if fits else 1
