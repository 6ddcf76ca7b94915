"""What a job writes where it runs, by its scheduler's own command: for jobs whose runs are not in a folder here."""

from __future__ import annotations

import os
import shlex
import time
from datetime import datetime, timezone
from pathlib import Path

from trainwiz import schedulers
from trainwiz.diagnose import Diagnosis, of_log
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.process import foreground
from trainwiz.process.capture import capture
from trainwiz.record.run import moment
from trainwiz.render import PLAN_FILE
from trainwiz.schedulers import Job, Phase, Seen
from trainwiz.store import jobs, plans, runs
from trainwiz.store.jobs import Submitted
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui.runs import state_name
from trainwiz.workflows.jobs import states
from trainwiz.workflows.jobs.dated import Dated

_EVERY_SECONDS = 5.0
_CAPTURE_SECONDS = 120.0


def meant(target: str, named: str | None = None) -> tuple[Job, Path] | None:
    """The job that is meant, and its project; None where a run here is, or the scheduler cannot show its output."""
    found = _without_run(target, named)
    return found if found and _output(found[0], 0, follow=False) else None


def waits(target: str, named: str | None, *, follow: bool) -> bool:
    """Say how a job stands that has no run yet, where its scheduler shows no output; whether that is all there is.

    Where `follow`, until it has one, or is over.
    """
    told: Seen | None = None
    while (found := _without_run(target, named)) and not meant(target, named):
        job, project = found
        seen = states.seen([job]).get(job)
        if seen is None:
            return False
        if seen != told:
            console.talk(line(job, seen))
        told = seen
        if seen.over or not follow:
            return not seen.over or _written(job, project) is not None or not runs.every(project)
        time.sleep(_EVERY_SECONDS)
    return False


def next_of_job(run: Run) -> Run | None:
    """The run in which the same job goes on, once it has begun; None where the job is over, or nobody knows."""
    job, project, told = jobs.of_run(run), run.folder.parent.parent, None
    while job and run.read("outcome").get("exit_code") != 0:
        every = runs.begun(project)
        later = every[every.index(run) + 1 :] if run in every else ()
        if again := next((each for each in later if jobs.of_run(each) == job), None):
            return again
        seen = states.seen([job]).get(job)
        if seen is None or seen.over:
            return None
        if seen != told and seen.phase in (Phase.QUEUED, Phase.REQUEUED):
            console.talk(line(job, seen))
        told = seen
        time.sleep(_EVERY_SECONDS)
    return None


def written(target: str, named: str | None = None) -> Path | None:
    """The file here with what the machines of a job wrote that has no run; None where there is none."""
    found = _without_run(target, named)
    return _written(*found) if found else None


def _written(job: Job, project: Path) -> Path | None:
    scheduler = schedulers.named(job.scheduler)
    name = scheduler.written(job) if scheduler else ""
    file = project / name
    return file if name and file.is_file() and file.stat().st_size else None


def failed(target: str) -> tuple[Job, Seen, Path] | None:
    """The job that is meant, if it failed before it had a run here, with the file that says why."""
    if not (found := _without_run(target, None)):
        return None
    job, project = found
    seen, file = states.seen([job]).get(job), _written(job, project)
    return (job, seen, file) if seen and seen.phase is Phase.FAILED and file else None


def _without_run(target: str, named: str | None) -> tuple[Job, Path] | None:
    is_project = (Path(target) / PLAN_FILE).is_file()
    project = Path(target) if is_project or named else Path()
    word = named or (runs.LATEST if is_project else target)
    submitted = jobs.every(project)
    found = [each for each in submitted if each.job.id == word] or (submitted[-1:] if word == runs.LATEST else [])
    if not found:
        return None
    every = runs.every(project)
    if found[-1].job in jobs.begun(project):
        return None
    if word == runs.LATEST and every and is_newer(every[-1], found[-1]):
        return None
    return found[-1].job, project


def newest_without_run(project: Path) -> Submitted | None:
    """The newest job, where no run here is part of it: it has not begun, or its folder is elsewhere."""
    submitted = jobs.every(project)[-1:]
    begun = jobs.begun(project) if submitted else frozenset()
    return next((each for each in submitted if each.job not in begun), None)


def is_newer(run: Run, submitted: Submitted) -> bool:
    """Whether a run of this machine's own began after a job was submitted."""
    return (moment(run.read("command").get("started")) or 0.0) > (moment(submitted.submitted) or 0.0)


def show(job: Job, project: Path, rank: int, *, follow: bool) -> int:
    """Show what the machine of a rank writes; where `follow`, from before its start until the job's end."""
    machine, since, told = _machine(project, rank), "", None
    scheduler = schedulers.named(job.scheduler)
    dated = Dated(scheduler) if scheduler and scheduler.dated else None
    try:
        while True:
            seen = _state(job)
            if seen.phase in (Phase.QUEUED, Phase.REQUEUED) and (follow or seen.phase is Phase.QUEUED):
                if seen != told:
                    console.talk(line(job, seen))
                told = seen
                if not follow:
                    return 0
                time.sleep(_EVERY_SECONDS)
                continue
            following = follow and not seen.over
            if dated:
                # Followed at once, what is there already would come pod by pod.
                code, asked = _show_dated(job, machine, dated), None
                if following and not code:
                    code, asked = _follow_dated(job, machine, dated)
            else:
                argv = _output(job, machine, follow=following, since=since)
                code, asked = foreground.run(argv, cwd=os.getcwd(), environ=os.environ, stdout=True)
            if asked is not None:
                return 0
            if code or not following:
                return 1 if code else 0
            since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            if _state(job).over:
                return 0
            time.sleep(_EVERY_SECONDS)
    except KeyboardInterrupt:
        return 0


def fetched(job: Job) -> tuple[Seen, str]:
    """A job's state, and all that its machine 0 wrote; its scheduler's words are shown where it gives nothing."""
    seen = _state(job)
    return seen, _all(job, 0)


def _all(job: Job, machine: int) -> str:
    """All that a machine of a job wrote, in that order."""
    scheduler, (printed, _) = schedulers.named(job.scheduler), _printed(job, machine)
    if not (scheduler and scheduler.dated):
        return printed
    return "".join(f"{scheduler.dated_line(line)[1]}\n" for line in scheduler.in_order(printed))


def _printed(job: Job, machine: int, since: str = "") -> tuple[str, bool]:
    """What its scheduler's command prints, and whether it could."""
    argv = _output(job, machine, follow=False, since=since)
    answer = capture(argv, timeout=_CAPTURE_SECONDS)
    failed = bool(answer.code) or answer.timed_out
    if failed:
        console.talk(t("`{command}` failed: {problem}", command=shlex.join(argv), problem=answer.problem))
    return answer.stdout, not failed


def _is_dated(job: Job) -> bool:
    scheduler = schedulers.named(job.scheduler)
    return scheduler is not None and scheduler.dated


def _show_dated(job: Job, machine: int, dated: Dated) -> int:
    printed, given = _printed(job, machine, dated.since)
    dated.show(printed)
    return 0 if given else 1


def _follow_dated(job: Job, machine: int, dated: Dated) -> tuple[int, int | None]:
    argv = _output(job, machine, follow=True, since=dated.since)
    dated.ask_again()
    return foreground.run(argv, cwd=os.getcwd(), environ=os.environ, each_line=dated.take)


def diagnosis(job: Job) -> tuple[Seen, Diagnosis | None, str]:
    """A job's state, why it failed by what machine 0 wrote, and the command that prints that."""
    line = shlex.join(_output(job, 0, follow=False))
    seen, text = fetched(job)
    return seen, of_log(text, log=line), line


def place(job: Job, command: str) -> str:
    """What a number of a line refers to: some schedulers' lines are put in order before they are read."""
    return t("{command} in order of time", command=command) if _is_dated(job) else command


def line(job: Job, seen: Seen) -> str:
    """A job's state, for people."""
    state = state_name(states.STATES[seen.phase])
    if seen.reason:
        return t("job {id}: {state}, {why}", id=job.id, state=state, why=text(seen.reason))
    return t("job {id}: {state}", id=job.id, state=state)


def _state(job: Job) -> Seen:
    found = states.asked([job])[job]
    if isinstance(found, Seen):
        return found
    why = found if isinstance(found, Message) else say("{scheduler} cannot be asked here", scheduler=job.scheduler)
    raise TrainwizError(
        say("the state of job {id} is unknown: {why}", id=job.id, why=why),
        say("check that this machine can reach the scheduler; the job continues"),
    )


def _output(job: Job, machine: int, *, follow: bool, since: str = "") -> tuple[str, ...]:
    scheduler = schedulers.named(job.scheduler)
    return scheduler.output(job, machine, follow=follow, since=since) if scheduler else ()


def _machine(project: Path, rank: int) -> int:
    machine = plans.read(plans.find(project)).machine
    if rank >= machine.num_processes:
        raise UsageError(say("the plan has {n} ranks, but no rank {rank}", n=machine.num_processes, rank=rank))
    return rank // machine.ranks_per_machine
