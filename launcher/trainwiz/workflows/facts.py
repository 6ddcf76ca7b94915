"""The facts before a command begins: the machine, and the surroundings of a plan."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainwiz import cluster
from trainwiz.errors import UsageError
from trainwiz.machine import Interpreter, Machine, Toolchain
from trainwiz.message import say
from trainwiz.network import ports
from trainwiz.probe import host, toolchain
from trainwiz.probe import interpreter as interpreters
from trainwiz.probe.interpreter import PendingInterpreter
from trainwiz.store import cache, calibration, machines, records
from trainwiz.workflows.planning.quantity import machine_named

if TYPE_CHECKING:
    from trainwiz.finding import Finding
    from trainwiz.plan import Plan
    from trainwiz.project import Disagreement
    from trainwiz.rules import Facts

_NAMED = re.compile(r"\s*\d+\s*[x×*][^./\\]+", re.IGNORECASE)
"""A machine that is named by its GPUs; a name with a dot or a slash is a file."""
_pending: dict[str, PendingInterpreter] = {}
"""Interpreters that `machine(wait=False)` began to look at; the next call takes them up."""

_seen: dict[str, Interpreter] = {}
"""Those of this process by cache key: failures, too, which are not remembered for the next one."""


def machine(
    *,
    machine_file: str | None,
    python: str | None,
    folder: str,
    wait: bool = True,
    fresh: bool = False,
    interfaces: bool = True,
) -> Machine:
    """The machine in a file or of a name like `8xH100`, else this one, with the interpreter that will train.

    `python` is that interpreter; by default the one that runs this.

    The interpreter is remembered, so that a second launch imports torch nowhere. Where it is not, `wait=False`
    starts looking and returns at once without it; `fresh` looks again. `interfaces` are for plans of several machines.
    Raises `UsageError` for a bad file or name.
    """
    if machine_file is not None:
        return _described(machine_file)
    executable = python or sys.executable
    interpreter = None if fresh else _recalled(executable)
    if interpreter is None and executable not in _pending:
        _pending[executable] = interpreters.start(executable)
    here = host.host(folder, toolchain=None if fresh else _toolchain, interfaces=interfaces)
    if interpreter is None and wait:
        interpreter = _looked_at(executable)
    return dataclasses.replace(here, interpreter=interpreter, bus_bandwidth=calibration.bus_bandwidth(here))


def is_named(machine: str) -> bool:
    """Whether what was given for a machine are its GPUs, and no file."""
    return bool(_NAMED.fullmatch(machine)) and not os.path.exists(machine)


def _described(name: str) -> Machine:
    if not is_named(name):
        return machines.read(name)
    machine, count = machine_named(name, "--machine")
    if count > 1:
        raise UsageError(
            say("--machine {given}: these are {count} machines", given=repr(name), count=count),
            say("name only one, and set the number with machine.num_machines"),
        )
    return machine


def training_machine(plan: Plan, machine: Machine) -> Machine | None:
    """The machine, unless a scheduler's job will run on others that have the GPUs which this one lacks; then None.

    No rule on machines then judges anything, as before a `trainwiz submit`.
    """
    is_elsewhere = plan.cluster.kind != "none" and cluster.job(os.environ) is None
    lacks_gpus = plan.machine.device == "cuda" and not machine.gpus
    return None if machine.probed and is_elsewhere and lacks_gpus else machine


def gather(plan: Plan, folder: str, machine: Machine | None) -> Facts:
    """All that the rules may ask for: the machine, what lies around the plan, and what it needs of memory and disk.

    `folder` is where the project is or will be. On a machine read from a file, ports and locks here mean nothing.
    """
    # `machine` comes before the first question, which waits for no rules and no pydantic.
    from trainwiz import fields
    from trainwiz.estimate import estimate
    from trainwiz.probe import project as surroundings
    from trainwiz.render import PLAN_FILE, SETTINGS
    from trainwiz.rules import Facts
    from trainwiz.store import artifacts

    here = machine is not None and machine.probed
    found = surroundings.project(plan, folder)
    changed = artifacts.changed(folder)
    edited = artifacts.texts(folder, [path for path in SETTINGS if path in changed])
    stale, disagreements = _compared(plan, folder, changed, edited)
    generated = [path for path in changed if path != PLAN_FILE]
    missing = {path for path in generated if not os.path.lexists(os.path.join(folder, path))}
    model = found.model
    port = plan.machine.main_process_port
    project = dataclasses.replace(
        found,
        port_in_use=port if here and plan.machine.num_processes > 1 and port and not ports.is_free(port) else None,
        build_locks=found.build_locks if here else (),
        offline=found.offline and here,
        missing_files=tuple(path for path in generated if path in missing),
        changed_files=tuple(path for path in generated if path not in missing),
        stale_files=tuple(path for path in stale if path not in missing),
        disagreements=disagreements,
        unwritten=tuple(
            (path, name, line) for path, text in edited.items() for name, line in fields.unwritten(text).items()
        ),
        own_functions=tuple(
            (path, name, line)
            for path, text in edited.items()
            if path == SETTINGS[0]
            for name, line in fields.functions(text).items()
        ),
        conflict_markers=artifacts.conflict_markers(folder, changed),
        kept_files=artifacts.kept(folder),
    )
    return Facts(
        plan=plan,
        machine=machine,
        project=project,
        estimate=estimate(plan, model.parameters, model.transformer) if model and model.parameters else None,
    )


def _compared(
    plan: Plan, folder: str, changed: Sequence[str], edited: Mapping[str, str]
) -> tuple[Sequence[str], tuple[Disagreement, ...]]:
    """The files that the plan would now make differently, and the values of edited ones that are not the plan's."""
    from trainwiz.render import PLAN_FILE, training_files
    from trainwiz.store import artifacts, templates

    # Rendered only if something was edited: a newer trainwiz renders differently, and that is not a mistake.
    if PLAN_FILE not in changed and not edited:
        return (), ()
    from trainwiz.render import agreement

    files = training_files(plan, templates.load())
    stale = artifacts.outdated(folder, files) if PLAN_FILE in changed else ()
    # A stale file is reported as a whole, and one that was not edited says what the plan said.
    present = {path: text for path, text in edited.items() if path not in stale}
    return stale, agreement.in_texts(plan, files, present)


def findings(
    plan: Plan, folder: str, machine: Machine | None, *, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """What the rules find in a plan. `select` and `ignore` are beginnings of their ids; nothing selected means all."""
    from trainwiz import rules

    chosen = [rule for rule in rules.of_plans() if rule.id.startswith(tuple(select) or ("TW",))]
    return rules.check(gather(plan, folder, machine), rules=chosen, ignore=ignore)


def _recalled(python: str) -> Interpreter | None:
    key = interpreters.cache_key(python) or python
    if key in _seen:
        return _seen[key]
    values = cache.recall("interpreters", key)
    if values is None:
        return None
    try:
        return records.build(Interpreter, values)
    except records.Malformed:
        return None


def _looked_at(python: str) -> Interpreter:
    found = _pending.pop(python).result(interpreters.SECONDS)
    key = interpreters.cache_key(python)
    # A failure may be repaired without a trace in site-packages (a driver, a library path): look again next time.
    _seen[key or python] = found
    if key and found.error is None and found.cuda_error is None:
        cache.remember("interpreters", key, records.plain(found))
    return found


def _toolchain() -> Toolchain:
    key = toolchain.cache_key()
    try:
        return records.build(Toolchain, cache.recall("toolchains", key))
    except records.Malformed:
        found = toolchain.toolchain()
        cache.remember("toolchains", key, records.plain(found))
        return found
