"""Which run a launch goes on from, and whether the plan, as it is now, can."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainwiz import checkpoint, cluster
from trainwiz.cluster import Place
from trainwiz.errors import Refused
from trainwiz.language import t
from trainwiz.plan import Plan
from trainwiz.record import redaction
from trainwiz.record.run import State, state
from trainwiz.store import checkpoints, history, runs
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows.launch.request import Request
from trainwiz.workflows.launch.usage import AUTO

_OVERRIDING = ("--seed", "--real_batch_size", "--num_processes")


def continued(request: Request, plan: Plan, folder: Path, place: Place | None) -> Run | None:
    """The run that `--resume` names, else the newest one if it was preempted or unfinished; None to start anew.

    Raises `Refused` with the way out, where the plan cannot go on from the run's newest checkpoint.
    """
    # Over several machines, machine 0 says which run goes on; the others may not even see it.
    if place and place.rank:
        return None
    job = cluster.job(os.environ)
    if request.resume == AUTO or (job and not request.resume and not request.new):
        return _automatic(request, plan, folder)
    if not request.resume:
        return None if request.new else _preempted(request, plan, folder)
    run = runs.to_continue(folder, request.resume)
    before = run.read("command").get("plan_hash")
    if before and before != plan.digest():
        console.talk(t("note: the plan has changed since run {name}", name=run.name), style="warning")
    _refuse_what_cannot_go_on(plan, run, request.arguments)
    return run


# docs/decisions/launching.md: In a scheduler's job a launch continues what is unfinished
def _automatic(request: Request, plan: Plan, folder: Path) -> Run | None:
    """The newest run if it is unfinished and the same training; None to start, and in both cases says so.

    Another start of a job goes on with the job's own run, however many other jobs have trained here meanwhile.
    """
    run = _newest(folder)
    if run is None:
        console.talk(t("no earlier run to continue: starting at update 0"))
        return None
    newest, name = run.checkpoint(), run.name
    found = state(history.without_metrics(run))
    if found is State.RUNNING and _of_this_job(run):
        found = State.KILLED  # a run under another start of this job is over, however fresh its traces are
    if found is State.DONE:
        console.talk(t("run {name} is done: starting a new one at update 0", name=name))
    elif found is State.RUNNING:
        console.talk(t("run {name} is still running: starting another one at update 0", name=name), style="warning")
    elif newest is None:
        console.talk(t("run {name} left no checkpoint: starting at update 0", name=name), style="warning")
    elif not _same(run, request, plan):
        console.talk(
            t(
                "the plan or the arguments changed since run {name}: starting at update 0 (--resume continues it)",
                name=name,
            ),
            style="warning",
        )
    else:
        _refuse_what_cannot_go_on(plan, run, request.arguments)
        console.talk(
            t(
                "run {name} is unfinished: continuing from {checkpoint} (--new starts over)",
                name=name,
                checkpoint=newest.name,
            )
        )
        return run
    return None


def _newest(folder: Path) -> Run | None:
    """The newest run of this process's job, or what took it over; without one, the newest of all."""
    every = runs.begun(folder)
    own = next((run for run in reversed(every) if _of_this_job(run)), None)
    if own is None:
        return next(iter(every[-1:]), None)
    kept = os.path.realpath(own.checkpoints)
    return [run for run in every[every.index(own) :] if os.path.realpath(run.checkpoints) == kept][-1]


def _of_this_job(run: Run) -> bool:
    """Whether another start of this process's job made the run."""
    recorded = run.read("command").get("inherited")
    before, now = cluster.job(recorded) if isinstance(recorded, dict) else None, cluster.job(os.environ)
    if before is None or now is None or (before.scheduler, before.name) != (now.scheduler, now.name):
        return False
    return now.restarts > before.restarts or now.queues_again  # only Slurm counts, and can have several steps


def _same(run: Run, request: Request, plan: Plan) -> bool:
    """Whether a run was launched with this plan and these arguments."""
    command = run.read("command")
    arguments = redaction.arguments(request.arguments)
    return command.get("plan_hash") == plan.digest() and command.get("arguments") == arguments


def _preempted(request: Request, plan: Plan, folder: Path) -> Run | None:
    run = runs.preempted(folder)
    if run is None:
        return None
    same = _same(run, request, plan)
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
