"""A run that a scheduler stopped: its job is queued again, where the scheduler does not do that by itself."""

from __future__ import annotations

import os
import re
import shlex

from trainwiz import cluster
from trainwiz.cluster import Job
from trainwiz.language import t
from trainwiz.outcome import signal_name
from trainwiz.process.capture import capture
from trainwiz.ui import console
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.request import Request

_SECONDS = 20.0
"""For each of the scheduler's commands; a job that is being stopped has little time."""
IDLE_STARTS = 3
"""So many starts of a job that trained nothing are not followed by another one."""
_WANTED = {"JobState": "RUNNING", "Requeue": "1", "BatchFlag": "1"}
"""Of a job that its owner has not cancelled, that may be queued again, and that has a script to begin with."""


# docs/decisions/launching.md: A job is queued again only while its scheduler calls it running
def ask(job: Job | None, *, trained: bool) -> bool:
    """Ask the scheduler to start the job again, and say what came of it; whether it will."""
    if job is None or not job.requeue:
        return False
    if not trained and job.restarts >= IDLE_STARTS:
        console.talk(
            t("the job is not queued again: it was started {n} times without training", n=job.restarts + 1),
            style="warning",
        )
        return False
    status = capture(job.status, timeout=_SECONDS)
    if status.code:
        console.talk(
            t("cannot ask {scheduler} about this job: {problem}", scheduler=job.scheduler, problem=status.problem)
        )
        return False
    found = dict(re.findall(r"(\w+)=(\S*)", status.stdout))
    if others := [f"{key}={found.get(key, '-')}" for key, value in _WANTED.items() if found.get(key) != value]:
        console.talk(
            t(
                "whether the job runs again is left to {scheduler}: {states}",
                scheduler=job.scheduler,
                states=" ".join(others),
            )
        )
        return False
    asked = capture(job.requeue, timeout=_SECONDS)
    if asked.code:
        line = shlex.join(job.requeue)
        console.talk(t("`{command}` failed: {problem}", command=line, problem=asked.problem), style="warning")
        return False
    console.talk(
        t("{scheduler} starts job {name} again, and it goes on from there", scheduler=job.scheduler, name=job.name)
    )
    return True


def here() -> Job | None:
    """The job of this process."""
    return cluster.job(os.environ)


def before_start(request: Request, signum: int) -> int:
    """Where a signal came before the ranks were started; the exit code."""
    name, code = signal_name(signum), request.stopped_code
    console.talk(t("stopped by {signal} before the ranks were started; exit code {code}", signal=name, code=code))
    known = cluster.machine_rank(os.environ) if request.machine_rank is None else request.machine_rank
    if not known:
        ask(here(), trained=False)
    return code


def after(prepared: Prepared, *, trained: bool) -> None:
    """After a run that a scheduler stopped; machine 0 asks, and has waited for the other machines' records."""
    job, place = here(), prepared.place
    if job is None or (place and place.rank):
        return
    ask(job, trained=trained)
