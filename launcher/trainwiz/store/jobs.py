"""`runs/jobs.jsonl`: what was submitted from a project, a line for each job, the newest last."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import schedulers
from trainwiz.errors import TrainwizError
from trainwiz.message import say
from trainwiz.schedulers import Job
from trainwiz.store import jsonl
from trainwiz.store.runs import RUNS, Run
from trainwiz.store.runs import every as every_run

_FILE = "jobs.jsonl"
_NEWEST_BYTES = 1 << 20
"""Ten thousand jobs; older ones have ended."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submitted job."""

    job: Job
    """The scheduler's name and its id of the job."""
    submitted: str
    """When, as `command.json` writes times."""


def add(project: Path, submitted: Submitted) -> None:
    """Note a job. Raises `TrainwizError`."""
    file = project / RUNS / _FILE
    line = {"scheduler": submitted.job.scheduler, "id": submitted.job.id, "submitted": submitted.submitted}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # One write that appends, so that simultaneous submissions do not mix their lines.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TrainwizError(
            say("cannot write to {folder}: {error}", folder=file, error=error.strerror or error),
            say("the job {id} was submitted and continues, but `trainwiz runs` does not list it", id=submitted.job.id),
        ) from None


def every(project: Path) -> tuple[Submitted, ...]:
    """The newest jobs, the oldest first; lines that say anything else are left out."""
    found = [_read(line) for line in jsonl.newest(project / RUNS / _FILE, _NEWEST_BYTES)]
    return tuple(each for each in found if each)


def begun(project: Path) -> frozenset[Job]:
    """The jobs that runs here are, or were, part of; with arrays of jobs as a whole."""
    jobs = [job for run in every_run(project) if (job := of_run(run))]
    return frozenset([*jobs, *map(whole, jobs)])


def whole(job: Job) -> Job:
    """What was submitted, of which a job may be a part."""
    scheduler = schedulers.named(job.scheduler)
    return scheduler.whole(job) if scheduler else job


def of_run(run: Run) -> Job | None:
    """The job that a run is, or was, part of."""
    return _job(run.read("command").get("job"))


def _read(line: Mapping[str, Any]) -> Submitted | None:
    job = _job(line)
    return Submitted(job=job, submitted=str(line.get("submitted", ""))) if job else None


def _job(value: object) -> Job | None:
    if not isinstance(value, Mapping):
        return None
    scheduler, id = value.get("scheduler"), value.get("id")
    if not isinstance(scheduler, str) or not isinstance(id, str):
        return None
    # An id becomes an argument of a command: one that could be an option, or mean several jobs, is ignored.
    known = schedulers.named(scheduler)
    return Job(scheduler=scheduler, id=id) if known is None or re.fullmatch(known.id_pattern, id) else None
