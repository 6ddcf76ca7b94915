"""Which run a launch goes on from, and whether the plan, as it is now, can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainwiz import checkpoint
from trainwiz.errors import Refused
from trainwiz.language import t
from trainwiz.plan import Plan
from trainwiz.record import redaction
from trainwiz.store import checkpoints, runs
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows.launch.request import Request

_OVERRIDING = ("--seed", "--real_batch_size", "--num_processes")


def continued(request: Request, plan: Plan, folder: Path) -> Run | None:
    """The run that `--resume` names, else the newest one if it was preempted; None to start anew.

    Raises `Refused` with the way out, where the plan cannot go on from the run's newest checkpoint.
    """
    # Over several machines, machine 0 says which run goes on; the others may not even see it.
    if plan.machine.num_machines > 1 and request.machine_rank:
        return None
    if not request.resume:
        return None if request.new else _preempted(request, plan, folder)
    run = runs.to_continue(folder, request.resume)
    before = run.read("command").get("plan_hash")
    if before and before != plan.digest():
        console.talk(t("note: the plan has changed since run {name}", name=run.name), style="warning")
    _refuse_what_cannot_go_on(plan, run, request.arguments)
    return run


def _preempted(request: Request, plan: Plan, folder: Path) -> Run | None:
    run = runs.preempted(folder)
    if run is None:
        return None
    command = run.read("command")
    same = command.get("plan_hash") == plan.digest()
    same = same and command.get("arguments") == redaction.arguments(request.arguments)
    words = (
        t("run {name} was preempted: continuing from its last checkpoint (--new starts over)", name=run.name)
        if same
        else t(
            "run {name} was preempted, but the plan or the arguments changed: starting over (--resume continues it)",
            name=run.name,
        )
    )
    console.talk(words, style="warning")
    return run if same else None


def _refuse_what_cannot_go_on(plan: Plan, run: Run, arguments: Sequence[str]) -> None:
    """Here at once, where the script would refuse, or its engine fail, seconds later."""
    newest = run.checkpoint()
    # What the arguments decide is for the script to judge.
    if newest is None or any(word.partition("=")[0] in _OVERRIDING for word in arguments):
        return
    obstacle = checkpoint.obstacle(plan, checkpoints.manifest(newest))
    if obstacle:
        raise Refused(obstacle.what, obstacle.instead)
