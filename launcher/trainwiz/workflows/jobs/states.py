"""What the schedulers say of submitted jobs, asked by their own commands, and what that means for the runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainwiz import schedulers
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.process.capture import Running
from trainwiz.record.run import State, Summary
from trainwiz.schedulers import Job, Phase, Seen
from trainwiz.store import jobs
from trainwiz.store.jobs import Submitted
from trainwiz.store.runs import Run
from trainwiz.store.runs import every as every_run

_SECONDS = 20.0
"""A scheduler that is busy answers late; `trainwiz runs` does not wait for ever."""
_MOST = 20
"""Jobs that are asked for, the newest: each costs a command or two."""
_OPEN = (State.RUNNING, State.UNKNOWN, State.KILLED)
"""States of runs that say less than their job's."""
_STATES = {
    Phase.QUEUED: State.QUEUED,
    Phase.RUNNING: State.RUNNING,
    Phase.REQUEUED: State.REQUEUED,
    Phase.PREEMPTED: State.PREEMPTED,
    Phase.DONE: State.DONE,
    Phase.FAILED: State.FAILED,
    Phase.STOPPED: State.STOPPED,
}


def seen(wanted: Iterable[Job]) -> dict[Job, Seen]:
    """What is known of each job; without those that no command knows, or whose commands are missing here."""
    return {job: found for job in dict.fromkeys(wanted) if (found := _seen(job))}


def told(project: Path, runs: Sequence[Run], summaries: Sequence[Summary]) -> list[tuple[Summary, Job | None]]:
    """The runs with what their schedulers say, each with its job; then the jobs that have no run yet."""
    of_runs = [jobs.of_run(run) for run in runs]
    newest = {job: i for i, job in enumerate(of_runs) if job}
    submitted = jobs.every(project)
    begun = {jobs.of_run(run) for run in every_run(project)} if submitted else set()
    without = [each for each in submitted[-_MOST:] if each.job not in begun]
    open_jobs = [job for job, i in newest.items() if summaries[i].state is not State.DONE]
    known = seen([*open_jobs[-_MOST:], *(each.job for each in without)])
    rows = [
        (_overlaid(line, known.get(job)) if job and newest[job] == i else line, job)
        for i, (line, job) in enumerate(zip(summaries, of_runs, strict=True))
    ]
    last = submitted[-1:]
    return [
        *rows,
        *((_waiting(each, known.get(each.job)), each.job) for each in without if each.job in known or each in last),
    ]


def _seen(job: Job) -> Seen | None:
    scheduler = schedulers.named(job.scheduler)
    for argv in scheduler.questions(job) if scheduler else ():
        answer = Running(argv).result(_SECONDS)
        if scheduler and answer.code == 0 and (found := scheduler.seen(job, argv, answer.stdout)):
            return found
    return None


def _overlaid(line: Summary, seen: Seen | None) -> Summary:
    if seen is None:
        return line
    # A run that ended says why better than its job, unless that goes on.
    if line.state in _OPEN or seen.phase in (Phase.REQUEUED, Phase.PREEMPTED):
        return dataclasses.replace(line, state=_STATES[seen.phase], why=seen.reason)
    return line


def _waiting(submitted: Submitted, seen: Seen | None) -> Summary:
    reason = seen.reason if seen else say("{scheduler} does not say so here", scheduler=submitted.job.scheduler)
    return Summary(
        name=t("job {id}", id=submitted.job.id),
        state=_STATES[seen.phase] if seen else State.UNKNOWN,
        started=submitted.submitted,
        updates=None,
        total=None,
        loss=None,
        eval_loss=None,
        speed=None,
        seconds=None,
        why=reason,
        resumed_from=None,
    )
