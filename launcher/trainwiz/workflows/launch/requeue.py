"""A run that a scheduler stopped: its job is queued again, where the scheduler does not do that by itself."""

from __future__ import annotations

import contextlib
import os
import shlex
import time

from trainwiz import cluster, schedulers
from trainwiz.errors import Ended
from trainwiz.language import t, text
from trainwiz.outcome import PREEMPTING
from trainwiz.process.capture import capture
from trainwiz.schedulers import Job, Scheduler
from trainwiz.ui import console
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.request import Request

_SECONDS = 20.0
"""For each of the scheduler's commands; a job that is being stopped has little time."""
IDLE_STARTS = 3
"""So many starts of a job that trained nothing are not followed by another one."""
_NOTICE_SECONDS = 3600.0
"""Where the job's file does not say when it is asked to stop: a job whose end is farther away than this, and than twice
the grace, was not stopped by its scheduler."""


def ask(*, trained: bool, grace: float) -> None:
    """Ask the scheduler to start this process's job again, and say what came of it."""
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
            t("cannot ask {scheduler} about this job: {problem}", scheduler=around.scheduler, problem=status.problem)
        )
        return
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


def after(prepared: Prepared, *, trained: bool) -> None:
    """After a run that a scheduler stopped; machine 0 asks, and has waited for the other machines' records."""
    place = prepared.place
    if not (place and place.rank):
        ask(trained=trained, grace=prepared.request.grace)
