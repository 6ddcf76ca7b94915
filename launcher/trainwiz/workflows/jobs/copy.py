"""A run whose folder is elsewhere, rebuilt here from what its job's output says about it."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwiz.errors import TrainwizError, UsageError
from trainwiz.message import say
from trainwiz.record import job_output
from trainwiz.render import PLAN_FILE
from trainwiz.schedulers import Job, Phase, Seen
from trainwiz.store import plans, runs
from trainwiz.store.runs import Run
from trainwiz.workflows.jobs import output

_EVERY_SECONDS = 15.0
"""Each time the whole output is fetched."""
_ELSEWHERE = {"hostname": "", "pid": 0}
"""The launcher's host: none that is known here."""
_ENDED = (Phase.DONE, Phase.FAILED, Phase.STOPPED, Phase.PREEMPTED)


class Copy:
    """The records of a job's newest run, as far as its output says them."""

    run: Run

    def __init__(self, job: Job, project: Path, folder: Path) -> None:
        """Raises `TrainwizError` where the output cannot be fetched, or speaks of no run."""
        self._job, self._project, self._folder = job, project, folder
        self._due = 0.0
        self.renew()

    def renew(self) -> None:
        """Fetch what is new, at most every quarter of a minute."""
        if time.monotonic() < self._due:
            return
        seen, text = output.fetched(self._job)
        found = job_output.read(text)
        name = str(found.run.get("name"))
        if not runs.NAME.fullmatch(name):
            raise UsageError(
                say("the output of job {id} does not mention a run yet", id=self._job.id),
                say("check its state and output: trainwiz logs {id}", id=shlex.quote(self._job.id)),
            )
        self.run = Run(self._folder / name)
        self._write(found, seen, text)
        self._due = time.monotonic() + _EVERY_SECONDS

    def _write(self, found: job_output.JobOutput, seen: Seen, text: str) -> None:
        run, ended = self.run, found.outcome or _outcome(seen)
        run.logs.mkdir(parents=True, exist_ok=True)
        run.log(0).write_text(text)
        plan, digest = self._plan()
        if digest == found.run.get("plan_hash"):
            (run.folder / "plan.yaml").write_text(plan)
        run.metrics.write_text("".join(f"{json.dumps(record)}\n" for record in found.records))
        run.record("command", {**found.run, **_ELSEWHERE, "plan": {"task": found.run.get("task")}})
        if ended:
            run.record("outcome", ended)
        elif seen.phase is Phase.RUNNING:
            run.beat.touch()

    def _plan(self) -> tuple[str, str]:
        """The plan here, which the job need not have."""
        file = self._project / PLAN_FILE
        with contextlib.suppress(OSError, TrainwizError):
            return file.read_text(encoding="utf-8"), plans.read(file).digest()
        return "", ""


@contextlib.contextmanager
def of(job: Job, project: Path) -> Iterator[Copy]:
    """A copy, for as long as it is needed. Raises `TrainwizError`."""
    with tempfile.TemporaryDirectory(prefix="trainwiz-") as folder:
        yield Copy(job, project, Path(folder))


def _outcome(seen: Seen) -> Mapping[str, Any]:
    """What the scheduler says of the end of a run that did not say it itself; empty while it goes on."""
    if seen.phase not in _ENDED:
        return {}
    how = {"template": "{text}", "values": {"text": str(seen.reason)}} if seen.reason else None
    return {
        "exit_code": 0 if seen.phase is Phase.DONE else 1,
        "stopped": seen.phase in (Phase.STOPPED, Phase.PREEMPTED),
        "diagnosis": {"how": how},
    }
