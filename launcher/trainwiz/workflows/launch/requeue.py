"""A run that a scheduler stopped: its job is queued again, where the scheduler does not do that by itself."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time

from trainwiz import cluster, schedulers
from trainwiz.errors import Ended
from trainwiz.language import t, text
from trainwiz.outcome import PREEMPTING, Outcome
from trainwiz.process.capture import capture
from trainwiz.schedulers import Job, Scheduler
from trainwiz.ui import console
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.request import Request

_SECONDS = 20.0
"""For each of the scheduler's commands; a job that is being stopped has little time."""
IDLE_STARTS = 3
"""So many starts of a job that trained nothing are not followed by another one."""
MOST_LOSSES = 10
"""As often as a job of Kubernetes: one that loses a machine each time would train forever."""
_NOTICE_SECONDS = 3600.0
"""Where the job's file does not say when it is asked to stop: a job whose end is farther away than this, and than twice
the grace, was not stopped by its scheduler."""


def ask(*, trained: bool, grace: float, notice: float | None = None) -> None:
    """Ask the scheduler to start this process's job again, and say what came of it.

    `notice` is how many seconds before its end the job may be at most; None: as the scheduler announces it.
    """
    around, job = cluster.job(os.environ), schedulers.around(os.environ)
    scheduler = schedulers.named(job.scheduler) if job else None
    if around is None or job is None or scheduler is None or not (requeue := scheduler.requeue(job)):
        return
    if not trained and around.restarts >= IDLE_STARTS:
        console.talk(
            t("the job is not requeued: it was started {n} times without training", n=around.restarts + 1),
            style="warning",
        )
        return
    status = capture(scheduler.questions(job)[0], timeout=_SECONDS)
    if status.code:
        console.talk(
            t("cannot ask {scheduler} about this job: {problem}", scheduler=around.scheduler, problem=status.problem),
            style="warning",
        )
        line = shlex.join(requeue)
        console.talk(t("to let it go on, run where {program} is installed: {line}", program=requeue[0], line=line))
        return
    if notice is None:
        notice = _announced(scheduler, job) or max(_NOTICE_SECONDS, 2 * grace)
    if obstacle := scheduler.obstacle(job, status.stdout, now=time.time(), notice=notice):
        console.talk(text(obstacle))
        return
    asked = capture(requeue, timeout=_SECONDS)
    if asked.code:
        line = shlex.join(requeue)
        console.talk(t("`{command}` failed: {problem}", command=line, problem=asked.problem), style="warning")
        return
    console.talk(
        t("{scheduler} restarts job {name}, and training continues from there", scheduler=around.scheduler, name=job.id)
    )


def _announced(scheduler: Scheduler, job: Job) -> float | None:
    """How long before its end the job's own file has it asked to stop."""
    command = scheduler.batch_file(job)
    return scheduler.notice(capture(command, timeout=_SECONDS).stdout) if command else None


def before_start(request: Request, ended: Ended) -> int:
    """Where a signal came before the ranks were started; the exit code."""
    by_scheduler = ended.signum in PREEMPTING
    code = request.stopped_code if by_scheduler else ended.exit_code
    with contextlib.suppress(OSError):  # the terminal may be gone
        console.talk(
            t("stopped by {signal} before the ranks were started; exit code {code}", signal=ended.name, code=code)
        )
    known = cluster.machine_rank(os.environ) if request.machine_rank is None else request.machine_rank
    if not known and by_scheduler:
        with contextlib.suppress(OSError):
            ask(trained=False, grace=request.grace)
    return code


def after(prepared: Prepared, outcome: Outcome, *, trained: bool) -> None:
    """After a run that a scheduler stopped, or that lost a machine.

    Machine 0 asks, and has waited for the other machines' records; where it is lost, the first of those that are left.
    """
    place = prepared.place
    left = [rank for rank in range(place.machines) if rank not in outcome.lost] if place else []
    if place and place.rank != left[0]:
        return
    if outcome.stopped and outcome.preempted:
        ask(trained=trained, grace=prepared.request.grace)
    elif outcome.lost and outcome.first_failed is None and outcome.exit_code and not outcome.interrupted:
        _replace(prepared, trained=trained)


# docs/decisions/launching.md: A job that lost a machine is queued again
def _replace(prepared: Prepared, *, trained: bool) -> None:
    """Ask for other nodes; otherwise frozen processes on the lost one keep the job's nodes until its time is over."""
    around = cluster.job(os.environ)
    if around and around.restarts >= MOST_LOSSES:
        words = t("the job is not queued again: it was started {n} times already", n=around.restarts + 1)
        console.talk(words, style="warning")
        return
    ask(trained=trained, grace=prepared.request.grace, notice=math.inf)
