"""What is kept of the training, and the room it needs."""

from __future__ import annotations

from trainwiz.estimate import Estimate
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.quantities import gib, size
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import total_updates


@rule("TW501", level=Level.ERROR, field="checkpoint.checkpoints_total_limit")
def some_checkpoint_is_kept(plan: Plan) -> Violations:
    """checkpoints_total_limit must be empty (keep all) or at least 1.

    Without it: tools read 0 in opposite ways: the generated script keeps all checkpoints; accelerate deletes all of
    them before each save, so that a kill while saving leaves nothing.
    Why: people write 0 for "no limit" and also for "none".
    Instead: leave it empty (null) to keep all, or set 2 or more to limit disk use.
    Source: seen with accelerate 1.15 (`ProjectConfiguration.total_limit`) and the generated checkpoints.py
    """
    if plan.checkpoint.checkpoints_total_limit == 0:
        yield violation(
            "checkpoint.checkpoints_total_limit is 0, which can mean none or all",
            remedy(
                "set checkpoint.checkpoints_total_limit to 2 or more, or to null to keep all",
                {"checkpoint.checkpoints_total_limit": 2},
            ),
        )


@rule("TW502", level=Level.WARNING, field="checkpoint.checkpoints_total_limit")
def more_than_one_checkpoint_is_kept(plan: Plan) -> Violations:
    """Keep at least two checkpoints.

    Without it: there is only one checkpoint. If it is damaged, or the loss had already gone wrong when it was
    written, you cannot go back to an earlier one. accelerate's own rotation is worse: it deletes before it writes.
    Why: in 34 of 40 runs killed while saving, accelerate's total_limit=1 left nothing that could be loaded. The
    generated script writes to a separate folder, renames it, and only then deletes the old one.
    Instead: set 2 or more.
    Source: 40 trials of kill -9 during `Accelerator.save_state` (1.15)
    """
    if plan.checkpoint.checkpoints_total_limit == 1:
        fix = setting("checkpoint.checkpoints_total_limit", 2)
        yield violation("checkpoint.checkpoints_total_limit is 1: there is no earlier checkpoint to fall back to", fix)


@rule("TW503", level=Level.ERROR, field="checkpoint.checkpoints_total_limit")
def checkpoints_fit_the_disk(plan: Plan, machine: Machine, project: Project, estimate: Estimate) -> Violations:
    """The disk must have room for all kept checkpoints plus the one being written.

    Without it: accelerate stops in the middle of a save, hours into the run, with `SafetensorError: … No space left
    on device` or `enforce fail at inline_container.cc … unexpected pos`. The generated script stops if there is no
    earlier checkpoint; if there is one, it reports `update N was not saved` and continues training (or stops, see
    checkpoint.on_failed_save); nothing after that update is kept.
    Why: a checkpoint holds the weights and both moments of AdamW, at least 12 bytes per parameter; the oldest one
    is deleted only after the new one is complete.
    Instead: keep fewer, save less often, or put the project on a larger disk.
    Source: seen with accelerate 1.15, torch 2.13 and the generated train.py on a full disk
    """
    if machine.disk is None:
        return
    # A machine read from a file has its disk's size; how full it is now, nobody knows.
    have = machine.disk.free_bytes if machine.probed else machine.disk.total_bytes
    kept = _checkpoints_kept(plan, project)
    if (kept + 1) * estimate.checkpoint_bytes > have:
        room = say("{size} free", size=size(have)) if machine.probed else say("{size} in total", size=size(have))
        yield violation(
            "{kept} checkpoints and one being written need {need} ({each} each); {path} has {room}",
            remedy("keep fewer checkpoints (checkpoint.checkpoints_total_limit), or move the project to a larger disk"),
            kept=kept,
            need=size((kept + 1) * estimate.checkpoint_bytes),
            each=size(estimate.checkpoint_bytes),
            path=machine.disk.path,
            room=room,
        )


@rule("TW504", level=Level.WARNING, field="checkpoint.checkpointing_steps")
def restarts_find_a_checkpoint(plan: Plan) -> Violations:
    """A training with automatic restarts must save checkpoints before its end.

    Without it: each restart prints `no checkpoint in …: starting at the beginning`, and all work so far is lost.
    Why: supervision.max_restarts resumes from the newest checkpoint; with checkpointing_steps 0 the only checkpoint is
    written at the end. A rank that crashes or is killed saves nothing.
    Instead: set checkpointing_steps to the number of updates that you can afford to lose.
    Source: seen with the generated train.py, restarted by `trainwiz launch`
    """
    restarts = plan.supervision.max_restarts
    if restarts and plan.checkpoint.checkpointing_steps == 0:
        yield violation(
            "checkpoint.checkpointing_steps is 0: each restart (at most {max_restarts}) would begin at update 0",
            remedy("set checkpoint.checkpointing_steps to the number of updates that you can afford to lose"),
        )


def _checkpoints_kept(plan: Plan, project: Project) -> int:
    """How many lie on the disk at the end; with an unknown length at least one."""
    every, total = plan.checkpoint.checkpointing_steps, total_updates(plan, project)
    written = -(-total // every) if total and every else 1
    return min(written, plan.checkpoint.checkpoints_total_limit or written)


@rule("TW552", level=Level.WARNING, field="checkpoint.background")
def checkpoints_can_be_copied(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """Background checkpoints need host memory for a copy of the state.

    Without it: the training prints `no memory to copy … bytes: the training waits for its checkpoints`, and does.
    Why: the saved state must not change while it is written. The copy is as large as the checkpoint, pinned, and kept
    for the next save, in addition to offloaded state and the ranks' own memory (at least 152 MiB each; CUDA's is not
    counted). Other programs are not counted here: the training checks the free memory when it saves.
    Instead: save in the foreground, or use more memory.
    Source: the generated staging.py
    """
    need = estimate.staged_bytes_per_machine + estimate.host_bytes_per_machine + estimate.process_bytes_per_machine
    have = machine.memory.total_bytes
    copies = plan.checkpoint.background and estimate.staged_bytes_per_machine
    if copies and plan.machine.device != "cpu" and have and need > have:
        yield violation(
            "background checkpoints need {need} GiB of host memory for their copy, offloaded state and the ranks "
            "themselves, but there are only {have} GiB: training waits for each one",
            setting("checkpoint.background", False),
            need=gib(need),
            have=gib(have),
        )
