"""`trainwiz prepare`: download and tokenize a project's data in advance, exactly as its training would."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile

from trainwiz import language, tasks
from trainwiz.diagnose import of_log
from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.outcome import SIGNAL_BASE, shell_code
from trainwiz.probe import interpreter
from trainwiz.probe.data import PREPARE
from trainwiz.process import foreground
from trainwiz.shell_words import quoted
from trainwiz.store import logs, plans
from trainwiz.ui import console, diagnosis
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
            say("generate the project's files: trainwiz update {folder}", folder=quoted(project)),
        )
    executable = interpreter.located(python or sys.executable)
    machine = facts.machine(machine_file=None, python=python, folder=str(project))
    found = facts.findings(plan, str(project), machine)
    preflight.insist([finding for finding in found if finding.where.startswith("data.")])
    if not (tasks.of(plan).generative or tasks.of(plan).pairs):
        console.talk(t("this task reads its data at each start; as a test, it is downloaded and read once now"))
    with tempfile.NamedTemporaryFile(prefix="trainwiz-prepare-", suffix=".log") as log:
        argv, where = [executable, str(PREPARE), log.name], quoted(folder)
        code, asked = foreground.run(argv, cwd=str(project), environ={**os.environ, "PYTHONUNBUFFERED": "1"})
        if asked:
            console.talk(t("tokenized data is kept; to continue: trainwiz prepare {folder}", folder=where))
            return SIGNAL_BASE + asked
        if code == 0:
            console.talk(t("the data is ready: trainwiz launch {folder}", folder=where), style="good")
        elif os.path.getsize(log.name):
            _explain(log.name)
    return shell_code(code)


def _explain(log: str) -> None:
    """The cause where it is known, else the traceback or the sentence that task.py ended with."""
    lines = logs.read(log).lines()
    found = of_log(lines, log=log)
    if found and found.known:
        how = say("the data was not prepared")
        diagnosis.show(dataclasses.replace(found, how=how, last=(), line=None), log=log)
    else:
        for line in lines:
            console.talk(language.retold(line.text))
