"""Where a run comes from: plan with reasons, machine, state of the code. Part of what `command.json` keeps."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.errors import TrainwizError
from trainwiz.message import Message
from trainwiz.record import redaction

if TYPE_CHECKING:
    from trainwiz.diagnose import Diagnosis
    from trainwiz.machine import Machine
    from trainwiz.workflows.launch.supervise import Launch

_LAST_CHANCE_SECONDS = 1.0


def of(launch: Launch) -> dict[str, Any]:
    """The plan, the machine, and the variables of the surroundings that decide how a training runs."""
    from trainwiz.store import liveness

    return {
        "plan": redaction.values(launch.plan.model_dump(mode="json"), secrets(launch)) if launch.plan else None,
        "config_values": redaction.values(dict(launch.config_values), secrets(launch)),
        "total_updates": launch.total_updates,
        "inherited": redaction.values(redaction.recorded(os.environ), secrets(launch)),
        "machine": machine(launch.machine),
        "pid_birth": liveness.birth(os.getpid()),
    }


def keep_plan(launch: Launch) -> None:
    """Keep `trainwiz.yaml` with its reasons as it is now, beside the values: it will be edited."""
    if launch.plan is None:
        return
    from trainwiz.render import PLAN_FILE

    file = Path(launch.command.cwd) / PLAN_FILE
    # The training matters more than this copy; the values are in the record.
    with contextlib.suppress(OSError):
        text = redaction.text(file.read_text(encoding="utf-8"), secrets(launch))
        (launch.run.folder / "plan.yaml").write_text(text, encoding="utf-8")


def secrets(launch: Launch) -> frozenset[str]:
    """What must not stand in any record of this launch."""
    return redaction.known(launch.command.argv, {**os.environ, **launch.command.environ})


def machine(machine: Machine) -> dict[str, Any]:
    """What a machine is, in a few values; sizes in bytes."""
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


def variables(added: Mapping[str, str]) -> dict[str, str]:
    """The variables that trainwiz added, with only the known ones' values."""
    allowed = redaction.recorded(added)
    return {name: allowed.get(name, redaction.HIDDEN) for name in added}


def diagnosis(launch: Launch, diagnosis: Diagnosis) -> dict[str, Any]:
    """What was wrong, as `outcome.json` keeps it."""
    told = {
        "rank": diagnosis.rank,
        "known": diagnosis.known,
        **{part: _message(getattr(diagnosis, part)) for part in ("how", "cause", "remedy")},
        "evidence": list(diagnosis.evidence),
        "name": diagnosis.name,
        "line": diagnosis.line,
        "exception": diagnosis.exception,
        "last_lines": list(diagnosis.last),
        "observed": [_message(message) for message in diagnosis.observed],
        "followed_ranks": list(diagnosis.followed),
        "passing": diagnosis.transient,
    }
    hidden: dict[str, Any] = redaction.values(told, secrets(launch))
    return hidden


def _message(message: Message) -> dict[str, Any]:
    # Its English, and what another language makes it anew from.
    return {
        "text": str(message),
        "template": message.template,
        "values": {name: _value(value) for name, value in message.values.items()},
    }


def _value(value: object) -> Any:
    if isinstance(value, Message):
        return _message(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


class Peak:
    """The most memory that any one process of the training held; the kernel counts it anyway."""

    def __init__(self) -> None:
        self._before = self._now()

    def bytes(self) -> int | None:
        """None where a probe before the training held more, which cannot be told apart."""
        now = self._now()
        return now if now > self._before else None

    def _now(self) -> int:
        # In KiB on Linux: https://man7.org/linux/man-pages/man2/getrusage.2.html
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


class CodeState:
    """Asks git beside the training, which does not wait for it, and adds the answer to the record."""

    def __init__(self, launch: Launch, described: Mapping[str, Any]) -> None:
        self._launch, self._described = launch, described
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """A run that ended at once: the answer gets a moment."""
        self._thread.join(_LAST_CHANCE_SECONDS)

    def _ask(self) -> None:
        from trainwiz.probe import code
        from trainwiz.store import runs

        state = dataclasses.asdict(code.state(self._launch.command.cwd, without=runs.RUNS))
        # A record that cannot be written was said when it was first tried.
        with contextlib.suppress(TrainwizError):
            self._launch.run.record("command", {**self._described, "git": redaction.values(state)})
