"""`trainwiz submit`: check a project as far as that is possible here, and hand its job to the plan's scheduler."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainwiz import schedulers
from trainwiz.errors import Refused, TrainwizError, UsageError
from trainwiz.finding import errors
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.process import termination
from trainwiz.process.capture import Captured, Running
from trainwiz.schedulers import Job, Scheduler
from trainwiz.shell_words import operand, quoted
from trainwiz.store import artifacts, jobs, plans
from trainwiz.store.jobs import Submitted
from trainwiz.ui import console
from trainwiz.ui import findings as shown
from trainwiz.workflows import facts
from trainwiz.workflows.check import preflight
from trainwiz.workflows.jobs.request import Request

_SECONDS = 120.0


def submit(request: Request) -> int:
    """Submit the project's job. Raises `TrainwizError` with the scheduler's own words where it refuses."""
    plan_file = plans.find(request.folder)
    plan, folder = plans.read(plan_file), plan_file.parent
    scheduler = schedulers.of(plan)
    if scheduler is None:
        raise UsageError(
            say("{file} sets no scheduler: cluster.kind is none", file=plan_file),
            say(
                "run: trainwiz update {folder} --set cluster.kind=slurm (or kubernetes, or skypilot); to train on this "
                "machine: trainwiz launch {folder}",
                folder=quoted(folder),
            ),
        )
    commands = scheduler.submission(plan)
    # This machine need not be like those that will train: what its rules say of it means nothing there.
    findings = facts.findings(plan, str(folder), None, ignore=request.ignore)
    if request.dry_run:
        if request.json:
            files = dict(_job_files(plan, folder))
            console.data_json({**shown.to_dict(findings), "files": files, "commands": commands})
        else:
            shown.show(findings)
            _show(plan, folder, commands)
        return 1 if errors(findings) else 0
    preflight.insist(findings)
    _insist_on_files(plan, folder)
    _insist_on_program(scheduler, folder, commands)
    if names := scheduler.overriding(_environ(scheduler)):
        words = t("variables that override {file}: {names}", file=scheduler.file, names=", ".join(names))
        console.talk(words, style="warning")
    asking: list[Running] = []
    # A job that the scheduler accepted but that is not recorded would train unnoticed.
    with termination.all_deferred(ctrl_c_waits=lambda: bool(asking) and asking[-1].code is not None) as came:
        job = _submitted(scheduler, plan, folder, commands, asking, came)
        jobs.add(folder, Submitted(job=job, submitted=time.strftime("%Y-%m-%dT%H:%M:%S%z")))
        _tell(request, job, commands)
    return 0


def _tell(request: Request, job: Job, commands: Sequence[Sequence[str]]) -> None:
    if request.json:
        console.data_json({"job": job.id, "scheduler": job.scheduler, "commands": commands})
    else:
        console.data(job.id)
    where = [] if request.folder == "." else [operand(request.folder)]
    console.talk(t("submitted: job {id}", id=job.id), style="good")
    for line, what in (
        (["runs", *where], t("its state")),
        (["logs", *where, "-f"], t("the output of rank 0, once it runs")),
        (["stop", *where, *(["--run"] if where else []), job.id], t("saves a checkpoint and stops it")),
    ):
        console.talk(f"  {shlex.join(['trainwiz', *line])}    {what}")


def by_hand(folder: Path, commands: Sequence[Sequence[str]]) -> str:
    """The commands as one line to be typed."""
    change = [] if folder == Path() else [shlex.join(["cd", operand(folder)])]
    return " && ".join([*change, *map(shlex.join, commands)])


def _show(plan: Plan, folder: Path, commands: Sequence[Sequence[str]]) -> None:
    for path, content in _job_files(plan, folder):
        console.talk(t("{file}:", file=folder / path), style="dim")
        console.data(content.rstrip("\n"))
    console.talk(t("would run:"), style="dim")
    console.data(by_hand(folder, commands))


def _job_files(plan: Plan, folder: Path) -> list[tuple[str, str]]:
    """The scheduler's files as they are in the project, or as they would be."""
    from trainwiz.render import job_files

    files = job_files(plan)
    present = artifacts.texts(folder, [file.path for file in files])
    return [(file.path, present.get(file.path, file.text)) for file in files]


def _insist_on_files(plan: Plan, folder: Path) -> None:
    from trainwiz.render import job_files

    files = job_files(plan)
    missing = [file.path for file in files if not (folder / file.path).is_file()]
    stale = [path for path in artifacts.outdated(folder, files) if path not in missing]
    if missing or stale:
        names = ", ".join([*missing, *stale])
        raise Refused(
            say("missing in {folder}: {files}", folder=folder, files=names)
            if missing
            else say("the plan has changed since these files were generated: {files}", files=names),
            say("run: trainwiz update {folder}", folder=quoted(folder)),
        )


def _insist_on_program(scheduler: Scheduler, folder: Path, commands: Sequence[Sequence[str]]) -> None:
    if shutil.which(scheduler.program) is None:
        raise TrainwizError(
            say("{program} is not installed here; nothing was submitted", program=scheduler.program),
            say("on a machine that has it, run: {line}", line=by_hand(folder, commands)),
        )


def _submitted(
    scheduler: Scheduler,
    plan: Plan,
    folder: Path,
    commands: Sequence[Sequence[str]],
    asking: list[Running],
    came: Sequence[int],
) -> Job:
    """The job of these commands, each of which `asking` gets once it runs; none begins after a signal `came`."""
    answer = None
    for argv in commands:
        if came:
            raise KeyboardInterrupt
        try:
            asking.append(Running(argv, cwd=str(folder), env=_environ(scheduler)))
            answer = asking[-1].result(_SECONDS)
        except KeyboardInterrupt:
            console.talk(
                t(
                    "{program} did not respond: check whether the job is in its list; it is not recorded here",
                    program=argv[0],
                ),
                style="warning",
            )
            raise
        if answer.code or answer.timed_out:
            raise TrainwizError(
                say("{program} rejected the job: {words}", program=argv[0], words=_words(answer)),
                say("to see more, run: {line}", line=by_hand(folder, commands)),
            )
    job = scheduler.submitted(plan, answer.stdout) if answer else None
    if job is None:
        raise TrainwizError(
            say(
                "{program} succeeded, but reported no job: {words}",
                program=scheduler.program,
                words=_words(answer) if answer else "",
            ),
            say("the job may be running; check the scheduler's own list before you submit it again"),
        )
    return job


def _environ(scheduler: Scheduler) -> dict[str, str]:
    """This environment, in which the job also finds the trainwiz that submits it, and nothing of a job around it."""
    own = os.path.dirname(os.path.abspath(sys.argv[0]))
    path = os.environ.get("PATH", os.defpath)
    found = shutil.which("trainwiz")
    return {**scheduler.outside(os.environ), "PATH": path if found else os.pathsep.join([own, path])}


def _words(answer: Captured) -> str:
    said = " ".join((answer.stderr.strip() or answer.stdout.strip()).split())
    return said if said and not answer.timed_out else answer.problem
