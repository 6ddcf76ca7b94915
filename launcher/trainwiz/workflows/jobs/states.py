"""What the schedulers say of submitted jobs, asked by their own commands, and what that means for the runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainwiz import schedulers
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.process.capture import COULD_NOT_START, Captured, Running
from trainwiz.record.run import State, Summary
from trainwiz.schedulers import Argv, Job, Phase, Scheduler, Seen
from trainwiz.store import jobs
from trainwiz.store.jobs import Submitted
from trainwiz.store.runs import Run

_SECONDS = 20.0
"""A busy scheduler answers late; `trainwiz runs` does not wait forever."""
_MOST = 20
"""Jobs that are asked for, the newest: each costs a command or two."""
_OPEN = (State.RUNNING, State.UNKNOWN, State.KILLED)
"""States of runs that say less than their job's."""
STATES = {
    Phase.QUEUED: State.QUEUED,
    Phase.RUNNING: State.RUNNING,
    Phase.REQUEUED: State.REQUEUED,
    Phase.PREEMPTED: State.PREEMPTED,
    Phase.DONE: State.DONE,
    Phase.FAILED: State.FAILED,
    Phase.STOPPED: State.STOPPED,
}
"""A run's state, by that of its job."""


def seen(wanted: Iterable[Job]) -> dict[Job, Seen]:
    """What is known of each job; without those that no command knows, or whose commands are missing here."""
    return {job: found for job, found in asked(wanted).items() if isinstance(found, Seen)}


def asked(wanted: Iterable[Job]) -> dict[Job, Seen | Message | None]:
    """What is known of each job: a sentence where its scheduler's commands fail, None where they do not know it."""
    silent: dict[str, Message] = {}
    found: dict[Job, Seen | Message | None] = {}
    for job in dict.fromkeys(wanted):
        # A scheduler that is slow to answer one question is slow for all of them.
        found[job] = silent.get(job.scheduler) or _asked(job, silent)
    return found


def told(project: Path, runs: Sequence[Run], summaries: Sequence[Summary]) -> list[tuple[Summary, Job | None]]:
    """The runs with what their schedulers say, each with its job; then the jobs that have no run yet."""
    of_runs = [jobs.of_run(run) for run in runs]
    newest = {job: i for i, job in enumerate(of_runs) if job}
    submitted = jobs.every(project)
    begun = jobs.begun(project) if submitted else frozenset()
    without = [each for each in submitted[-_MOST:] if each.job not in begun]
    open_jobs = [job for job, i in newest.items() if summaries[i].state is not State.DONE]
    known = asked([*open_jobs[-_MOST:], *(each.job for each in without)])
    rows = [
        (_overlaid(line, known.get(job)) if job and newest[job] == i else line, job)
        for i, (line, job) in enumerate(zip(summaries, of_runs, strict=True))
    ]
    last = submitted[-1:]
    return [
        *rows,
        *(
            (_waiting(each, known.get(each.job)), each.job)
            for each in without
            if isinstance(known.get(each.job), Seen) or each in last
        ),
    ]


def _asked(job: Job, silent: dict[str, Message]) -> Seen | Message | None:
    """What is known of a job; a scheduler that gave no answer in time gets into `silent`."""
    scheduler, problem, is_silent = schedulers.named(job.scheduler), None, False
    if scheduler is None:
        return None
    for argv in scheduler.questions(job):
        answer = Running(argv).result(_SECONDS)
        if answer.code == 0 and not answer.timed_out and (found := scheduler.seen(job, argv, answer.stdout)):
            return _explained(scheduler, job, found)
        if answer.code or answer.timed_out:
            problem = problem or _problem(argv, answer)
            is_silent = is_silent or answer.timed_out
    if problem and is_silent:
        silent[job.scheduler] = problem
    return problem


def _explained(scheduler: Scheduler, job: Job, found: Seen) -> Seen:
    if found.phase is Phase.DONE or not (argv := scheduler.details(job)):
        return found
    answer = Running(argv).result(_SECONDS)
    return found if answer.code or answer.timed_out else scheduler.explained(job, found, answer.stdout)


def _problem(argv: Argv, answer: Captured) -> Message:
    if answer.code == COULD_NOT_START:
        return say("{program} is not installed here", program=argv[0])
    return say("{command} failed: {words}", command=" ".join(argv[:2]), words=answer.problem)


def _overlaid(line: Summary, seen: Seen | Message | None) -> Summary:
    if seen is None:
        return line
    if isinstance(seen, Message):
        return dataclasses.replace(line, why=seen) if line.state is State.UNKNOWN else line
    # A run that ended says why better than its job, unless that goes on.
    if line.state in _OPEN or seen.phase in (Phase.REQUEUED, Phase.PREEMPTED):
        return dataclasses.replace(line, state=STATES[seen.phase], why=seen.reason)
    return line


def _waiting(submitted: Submitted, answer: Seen | Message | None) -> Summary:
    seen = answer if isinstance(answer, Seen) else None
    unknown = answer if isinstance(answer, Message) else None
    unknown = unknown or say("{scheduler} cannot be asked here", scheduler=submitted.job.scheduler)
    reason = seen.reason if seen else unknown
    return Summary(
        name=t("job {id}", id=submitted.job.id),
        state=STATES[seen.phase] if seen else State.UNKNOWN,
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
