"""`trainwiz stop`: ask a run to save a checkpoint and end, wherever it runs."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from trainwiz import schedulers
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.process import signals
from trainwiz.process.capture import Running
from trainwiz.render import PLAN_FILE
from trainwiz.schedulers import Job, Phase
from trainwiz.shell_words import operand
from trainwiz.store import history, jobs, liveness, runs
from trainwiz.store.jobs import Submitted
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows.jobs import output, states

_SECONDS = 60.0


def stop(target: str, named: str) -> None:
    """Stop a run or a job: the one `named`, or else the newest of a project that goes on.

    `target` is a run, a job's id, or a project's folder. Raises `UsageError` where there is none.
    """
    is_project = (Path(target) / PLAN_FILE).is_file()
    project = Path(target) if is_project or named else Path()
    _stop(named or (runs.LATEST if is_project else target), project)


def _stop(word: str, project: Path) -> None:
    submitted = [each.job for each in jobs.every(project)]
    if meant := [job for job in submitted if job.id == word]:
        of_job = [run for run in runs.every(project) if meant[-1] in _names(run)]
        _stop_job(meant[-1], project, of_job[-1] if of_job else None)
        return
    if word == runs.LATEST and (waiting := output.newest_without_run(project)):
        _stop_newest(project, waiting)
    elif submitted and word != runs.LATEST and not runs.every(project) and not Path(word).is_dir():
        raise UsageError(
            say("no job {id} was submitted from here; the newest is {newest}", id=word, newest=submitted[-1].id),
            _list_of(project),
        )
    else:
        _stop_run(history.find(word, project))


def _names(run: Run) -> tuple[Job, ...]:
    """The job of a run, and the array that this is part of."""
    job = jobs.of_run(run)
    return (job, jobs.whole(job)) if job else ()


def _stop_run(run: Run) -> None:
    job = jobs.of_run(run)
    if job:
        _stop_job(job, run.project, run)
    else:
        _stop_here(run)


# docs/decisions/cli.md: `stop` without a name ends what began last and goes on
def _stop_newest(project: Path, waiting: Submitted) -> None:
    """Of a job that has no run here and the newest run: the one that began later, unless only the other goes on."""
    every = runs.every(project)
    if not every:
        _stop_job(waiting.job, project)
        return
    run, seen = every[-1], states.seen([waiting.job]).get(waiting.job)
    run_ended, job_ended = _has_ended(run), seen is not None and seen.over
    if job_ended or (output.is_newer(run, waiting) and not run_ended):
        _stop_run(run)
        if not job_ended:
            line = _line(project, waiting.job.id)
            console.talk(t("job {id} continues; to stop it as well: {command}", id=waiting.job.id, command=line))
        return
    _stop_job(waiting.job, project)
    if not run_ended:
        line = _line(project, run.name)
        console.talk(t("run {name} continues; to stop it as well: {command}", name=run.name, command=line))


def _has_ended(run: Run) -> bool:
    return bool(run.read("outcome")) or liveness.is_running(run.read("command"), run.beat) is False


def _line(project: Path, name: str) -> str:
    return shlex.join(["trainwiz", "stop", *([] if project == Path() else [operand(project), "--run"]), name])


def _list_of(project: Path) -> Message:
    return say("list the runs: {command}", command=history.listing(project))


def _stop_job(job: Job, project: Path, run: Run | None = None) -> None:
    """End a job, of which the run is the newest part; None: it has none yet."""
    seen = states.seen([job]).get(job)
    if seen and seen.over:
        raise UsageError(say("job {id} has already ended", id=job.id), _list_of(project))
    scheduler = schedulers.named(job.scheduler)
    # Of an array, what runs is asked to save, once nothing waits any more that would begin in its place.
    part = jobs.of_run(run) if run and not _has_ended(run) else None
    is_array = part is not None and part != job
    is_running = seen is None or seen.phase is Phase.RUNNING or is_array
    if run and is_running:
        _mark(run)
    first = scheduler.drop_waiting(job) if scheduler and is_array else ()
    for argv in (*first, *(scheduler.stop(part or job, runs=is_running) if scheduler else ())):
        answer = Running(argv).result(_SECONDS)
        if answer.code:
            raise TrainwizError(
                say("{command} failed: {words}", command=shlex.join(argv), words=answer.problem),
                say("check that this machine can reach the scheduler; the job continues"),
            )
    listing = history.listing(project)
    words = (
        t("asked job {id} to save a checkpoint and stop; {command} shows when it is done", id=job.id, command=listing)
        if is_running
        else t("removed job {id} from the queue", id=job.id)
    )
    console.talk(words, style="good")


# docs/decisions/supervision.md: A run counts as preempted if its launcher was asked to stop and a checkpoint exists
def _mark(run: Run) -> None:
    """Let the launcher know that no scheduler asks; it may be another user's folder, which changes nothing else."""
    with contextlib.suppress(OSError):
        run.stop_mark.touch()


def _stop_here(run: Run) -> None:
    command = run.read("command")
    alive = not run.read("outcome") and liveness.is_running(command)
    if alive is None:
        raise UsageError(
            say("run {name} was started on {host}", name=run.name, host=command.get("hostname")),
            say("there, run: kill -TERM {pid}", pid=command.get("pid")),
        )
    if not alive:
        raise UsageError(say("run {name} has already ended", name=run.name), _list_of(run.project))
    pid = int(command["pid"])
    if not liveness.belongs_to(pid, run.file("command")):
        raise UsageError(
            say("process {pid} does not belong to whoever launched run {name}", pid=pid, name=run.name),
            say("ask whoever launched it to stop it; nothing was stopped"),
        )
    was_marked = run.stop_mark.exists()
    _mark(run)
    try:
        signals.terminate(pid)
    except PermissionError:
        if not was_marked:
            with contextlib.suppress(OSError):
                run.stop_mark.unlink()
        raise UsageError(
            say("run {name} belongs to another user", name=run.name),
            say("ask whoever launched it to stop it; nothing was stopped"),
        ) from None
    console.talk(
        t(
            "asked run {name} to save a checkpoint and stop; {command} shows when it is done",
            name=run.name,
            command=history.listing(run.project),
        ),
        style="good",
    )
