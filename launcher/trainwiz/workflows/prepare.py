"""`trainwiz prepare`: download and tokenize a project's data ahead, exactly as its training would."""

from __future__ import annotations

import os
import shlex
import sys

from trainwiz import tasks
from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.outcome import SIGNAL_BASE, shell_code
from trainwiz.probe import interpreter
from trainwiz.probe.data import PREPARE
from trainwiz.process import foreground
from trainwiz.store import plans
from trainwiz.ui import console
from trainwiz.workflows import facts
from trainwiz.workflows.check import preflight


def prepare(folder: str, *, python: str | None) -> int:
    """Prepare the data of a project; return its exit code: 130 after Ctrl-C, 143 after SIGTERM.

    Raises `Refused` where the data cannot be read.
    """
    plan_file = plans.find(folder)
    plan, project = plans.read(plan_file), plan_file.parent
    if not (project / "task.py").is_file():
        raise UsageError(
            say("{folder} contains no task.py", folder=project),
            say("write the files of the project: trainwiz update {folder}", folder=project),
        )
    executable = interpreter.located(python or sys.executable)
    machine = facts.machine(machine_file=None, python=python, folder=str(project))
    found = facts.findings(plan, str(project), machine)
    preflight.insist([finding for finding in found if finding.where.startswith("data.")])
    if not (tasks.of(plan).generative or tasks.of(plan).pairs):
        console.talk(t("this task reads its data at each start; it is now downloaded and read once, as a test"))
    argv, where = [executable, str(PREPARE)], shlex.quote(folder)
    code, asked = foreground.run(argv, cwd=str(project), environ={**os.environ, "PYTHONUNBUFFERED": "1"})
    if asked:
        console.talk(t("what is tokenized is kept; to go on from there: trainwiz prepare {folder}", folder=where))
        return SIGNAL_BASE + asked
    if code == 0:
        console.talk(t("the data is ready: trainwiz launch {folder}", folder=where), style="good")
    return shell_code(code)
