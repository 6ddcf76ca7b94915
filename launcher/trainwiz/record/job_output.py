"""What a job's output says about its run: lines of JSON among others, for machines that cannot read the run's folder.

Schedulers put names before lines, and colors around them, so that such a line is found wherever it begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwiz.record.metrics import Record

_KINDS = ("run", "metrics", "outcome")
_LINE = re.compile(rf"trainwiz ({'|'.join(_KINDS)}) (\{{.*\}})")
_RUN = ("name", "started", "total_updates", "plan_hash", "task")
_OUTCOME = ("exit_code", "stopped", "interrupted", "signal", "seconds")


@dataclass(frozen=True, kw_only=True)
class JobOutput:
    """What an output says about the newest run in it."""

    run: Mapping[str, Any] = field(default_factory=dict)
    """Its name, when it was started, how many updates it has; empty where nothing was said."""
    records: tuple[Record, ...] = ()
    """Records of metrics, also of the runs that it continues, each update once."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """How it ended; empty where it did not."""


def run(name: str, command: Mapping[str, Any]) -> str:
    """The line with which a run begins, by its `command.json`."""
    plan = command.get("plan")
    task = plan.get("task") if isinstance(plan, Mapping) else None
    return _line("run", {"name": name, **command, "task": task}, _RUN)


def metrics(record: Record) -> str:
    """The line of a record of metrics."""
    return _line("metrics", record, tuple(record))


def outcome(record: Mapping[str, Any]) -> str:
    """The line with which a run ends, by its `outcome.json`."""
    return _line("outcome", record, _OUTCOME)


def read(output: str) -> JobOutput:
    """What an output says; what a restart trains again counts once."""
    found: dict[str, Any] = {}
    ended: dict[str, Any] = {}
    records: list[dict[str, Any]] = []
    for kind, written in _LINE.findall(output):
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            continue
        if kind == "run":
            found, ended = value, {}
        elif kind == "outcome":
            ended = value
        elif isinstance(update := value.get("update"), int):
            while records and _replaces(records[-1], value, update):
                records.pop()
            records.append(value)
    return JobOutput(run=found, records=tuple(records), outcome=ended)


def _replaces(before: Record, record: Record, update: int) -> bool:
    """Whether a record replaces an earlier one, because a restart went back before it."""
    return before["update"] > update or (before["update"] == update and before.keys() == record.keys())


def _line(kind: str, values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return f"trainwiz {kind} {json.dumps({name: values.get(name) for name in names})}"
