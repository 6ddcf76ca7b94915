"""The records of a run: what was started, and where it comes from (plan with reasons, machine, state of the code)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz import __version__, cluster, schedulers
from trainwiz.errors import TrainwizError
from trainwiz.machine import Machine
from trainwiz.message import Message
from trainwiz.plan import Plan
from trainwiz.probe import code, fingerprint
from trainwiz.record import redaction
from trainwiz.record.tokens import HIDDEN
from trainwiz.render import PLAN_FILE
from trainwiz.store import code_files, liveness, runs
from trainwiz.workflows.launch.prepared import Prepared

if TYPE_CHECKING:
    from trainwiz.diagnose import Diagnosis
    from trainwiz.ui.diagnosis import Fix

_LAST_CHANCE_SECONDS = 1.0


def describe(prepared: Prepared) -> dict[str, Any]:
    """What `command.json` keeps: enough to do it again, and no secret."""
    command, plan = prepared.command, prepared.plan
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "argv": redaction.arguments(command.argv),
        "arguments": redaction.arguments(prepared.request.arguments),
        "cwd": os.path.abspath(command.cwd),
        "environment": _variables(command.environ),
        "ranks": [{"rank": r.rank, "environment": _variables(r.environ)} for r in command.ranks],
        "launcher": command.launcher,
        "config": prepared.request.config or None,
        "versions": versions(prepared.machine),
        "ignored": list(prepared.request.ignore),
        "replays": prepared.request.replays or None,
        "plan_hash": plan.digest() if plan else None,
        "job": dataclasses.asdict(job) if (job := schedulers.around(os.environ)) else None,
        "resumed_from": prepared.continues.name if prepared.continues else None,
        "plan": redaction.values(plan.model_dump(mode="json"), secrets(prepared)) if plan else None,
        "config_values": redaction.values(dict(prepared.config_values), secrets(prepared)),
        "total_updates": prepared.total_updates,
        "inherited": redaction.values(redaction.recorded(os.environ, cluster.prefixes()), secrets(prepared)),
        "machine": described(prepared.machine),
        "pid_birth": liveness.start_ticks(os.getpid()),
        "hostname": os.uname().nodename,
        "pid": os.getpid(),
    }


def keep_plan(prepared: Prepared) -> None:
    """Keep `trainwiz.yaml` with its reasons as it is now, beside the values: it will be edited."""
    if prepared.plan is None:
        return
    file = Path(prepared.command.cwd) / PLAN_FILE
    # The training matters more than this copy; the values are in the record.
    with contextlib.suppress(OSError):
        text = redaction.text(file.read_text(encoding="utf-8"), secrets(prepared))
        (prepared.run.folder / "plan.yaml").write_text(text, encoding="utf-8")


def secrets(prepared: Prepared) -> frozenset[str]:
    """The secrets that must not be in any record of this launch."""
    return redaction.known(prepared.command.argv, {**os.environ, **prepared.command.environ})


def versions(machine: Machine) -> dict[str, str | None]:
    """Those of trainwiz, of the Python that trains, and of its packages."""
    interpreter = machine.interpreter
    packages = {name: v for name, v in (interpreter.packages if interpreter else {}).items() if v}
    return {"trainwiz": __version__, "python": interpreter.python_version if interpreter else None, **packages}


def described(machine: Machine) -> dict[str, Any]:
    """A machine in a few values; sizes in bytes."""
    return {
        "platform": machine.platform,
        "cpu": machine.cpu.model,
        "usable_cores": machine.cpu.usable_cores,
        "memory_bytes": machine.memory.total_bytes,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in machine.gpus],
        "driver_version": machine.driver_version,
        "cuda_driver_version": machine.cuda_driver_version,
        "disk_free_bytes": machine.disk.free_bytes if machine.disk else None,
    }


def _variables(added: Mapping[str, str]) -> dict[str, str]:
    """The variables that trainwiz added, with only the known ones' values."""
    allowed = redaction.recorded(added)
    return {name: allowed.get(name, HIDDEN) for name in added}


def shown(prepared: Prepared, diagnosis: Diagnosis) -> Diagnosis:
    """A diagnosis as it may be printed, also into the log of a job: an exception repeats its arguments."""
    known = secrets(prepared)

    def lines(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(redaction.text(word, known) for word in words)

    def message(one: Message) -> Message:
        nested = {name: message(value) for name, value in one.values.items() if isinstance(value, Message)}
        return Message(one.template, {**redaction.values(one.values, known), **nested})

    return dataclasses.replace(
        diagnosis,
        evidence=lines(diagnosis.evidence),
        last=lines(diagnosis.last),
        exception=redaction.text(diagnosis.exception, known),
        how=message(diagnosis.how),
        cause=message(diagnosis.cause),
        remedy=message(diagnosis.remedy),
        suspects=tuple((name, message(cause)) for name, cause in diagnosis.suspects),
    )


def diagnosis(prepared: Prepared, diagnosis: Diagnosis) -> dict[str, Any]:
    """What was wrong, as `outcome.json` keeps it."""
    told = {
        **diagnosis.to_dict(),
        **{part: _message(getattr(diagnosis, part)) for part in ("how", "cause", "remedy")},
        "observed": [_message(message) for message in diagnosis.observed],
    }
    hidden: dict[str, Any] = redaction.values(told, secrets(prepared))
    return hidden


def fix(fix: Fix) -> dict[str, Any]:
    """The change of the plan that the crash card shows, as `outcome.json` keeps it."""
    return {
        "changes": fix.recorded_changes(),
        "why": _message(fix.why),
        "saves": _message(fix.saves) if fix.saves else None,
    }


def _message(message: Message) -> dict[str, Any]:
    # In English, and as the parts that other languages are made from.
    return {
        "text": str(message),
        "template": message.template,
        "values": {name: _value(value) for name, value in message.values.items()},
    }


def _value(value: object) -> Any:
    if isinstance(value, Message):
        return _message(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


class CommandRecord:
    """`command.json` of a run, to which several threads add."""

    def __init__(self, prepared: Prepared) -> None:
        self.values = {**describe(prepared), **_files(prepared)}
        self._run, self._lock = prepared.run, threading.Lock()
        self._run.record("command", self.values)

    def add(self, **values: Any) -> None:
        """Add or replace values."""
        # A record that cannot be written was said when it was first tried.
        with self._lock, contextlib.suppress(TrainwizError):
            self.values |= values
            self._run.record("command", self.values)


def _files(prepared: Prepared) -> dict[str, Any]:
    """The digests of a project's files, each of which is kept: whoever replays the run needs its code as it was."""
    if prepared.plan is None:
        return {}
    found = code_files.keep(Path(prepared.command.cwd), secrets(prepared))
    return {"files": found.digests, "files_whole": found.whole}


# docs/decisions/launching.md: `git status` runs beside the training
class CodeState:
    """Asks git beside the training, which does not wait for it, and adds the answer to the record."""

    def __init__(self, prepared: Prepared, record: CommandRecord) -> None:
        self._prepared, self._record = prepared, record
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """A run that ended at once: the answer gets a moment."""
        self._thread.join(_LAST_CHANCE_SECONDS)

    def _ask(self) -> None:
        state = dataclasses.asdict(code.state(self._prepared.command.cwd, without=runs.RUNS))
        # A commit has the shape of some keys.
        git = {**redaction.values(state), "commit": state["commit"]}
        self._record.add(git=git, data=data_digests(self._prepared.plan, self._prepared.command.cwd))


def data_digests(plan: Plan | None, folder: str | Path) -> dict[str, str]:
    """Digests of the files that a plan trains on and evaluates, as they are now."""
    named = {"data.train": plan.data.train, "data.eval": plan.data.eval} if plan else {}
    return fingerprint.of_plan_data(Path(folder), named)
