"""`trainwiz doctor`: look at the environment that will train, judge it, and say what to type."""

from __future__ import annotations

import dataclasses
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from trainwiz import rules
from trainwiz.checkup import checkup, of_name
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.network import ports
from trainwiz.plan import Plan
from trainwiz.probe import comm, hub, interpreter, library_caches, locks, ops
from trainwiz.rules.registry import Facts, check
from trainwiz.store import calibration, machines, plans
from trainwiz.surroundings import Comm, Port, Surroundings
from trainwiz.ui import console
from trainwiz.ui import doctor as checklist
from trainwiz.workflows import facts

CPU_RANKS = 2
"""Ranks of the all-reduce where neither a plan nor GPUs say how many."""
_DEFAULT_PORT = 29500


def examine(folder: str, *, machine_file: str | None, python: str | None, with_all_reduce: bool, as_json: bool) -> int:
    """Show the checkup; 1 if anything would stop a training. Raises `UsageError` for options that contradict."""
    _check_usage(folder, machine_file, python, with_all_reduce)
    if machine_file:
        machine, around = facts.machine(machine_file=machine_file, python=None, folder=folder), None
    else:
        machine, around = _look(folder, python, with_all_reduce)
    own = [rule for rule in rules.of_plans() if set(rule.needs) <= {"machine"}]
    found = check(Facts(machine=machine), rules=own)
    named = machine_file is not None and facts.is_named(machine_file)
    lines = of_name(machine, found) if named else checkup(machine, around, found)
    errors, warnings = checklist.count(lines)
    if as_json:
        shown = [checklist.to_dict(line) for line in lines]
        console.data_json(
            {"machine": machines.to_dict(machine), "lines": shown, "errors": errors, "warnings": warnings}
        )
    else:
        checklist.show(lines, seen=not named)
    return 1 if errors else 0


def _check_usage(folder: str, machine_file: str | None, python: str | None, with_all_reduce: bool) -> None:
    if machine_file and (python or with_all_reduce):
        raise UsageError(
            say(
                "--machine describes another machine and its interpreter; {option} checks this machine",
                option="--python" if python else "--comm",
            ),
            say("use only one of them"),
        )
    if os.path.isfile(folder):
        raise UsageError(say("{file} is a file", file=folder), say("pass a folder, or omit it"))
    if not os.path.isdir(folder):
        raise UsageError(
            say("folder {folder} does not exist", folder=folder), say("pass an existing folder, or omit it")
        )


def _look(folder: str, python: str | None, with_all_reduce: bool) -> tuple[Machine, Surroundings]:
    """The machine and what is around it; torch, DeepSpeed and the hub, which are slow, at the same time."""
    executable = interpreter.located(python or sys.executable)
    if sys.stderr.isatty():
        console.talk(t("checking this machine and {python} …", python=executable), style="dim")
    plan = _plan(folder, required=with_all_reduce)
    port = plan.machine.main_process_port if plan else _DEFAULT_PORT
    asked = ops.start(executable)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(hub.look)
        machine = facts.machine(machine_file=None, python=executable, folder=folder, fresh=True)
        found = Surroundings(
            hub=answer.result(),
            caches=library_caches.caches(),
            locks=locks.stale_locks(),
            ports=(Port(number=port, free=ports.is_free(port)),) if port else (),
        )
    if machine.interpreter and machine.interpreter.version("deepspeed"):
        known, problem = asked.result()
        found = dataclasses.replace(found, ops=known, ops_error=problem)
    asked.cancel()
    if with_all_reduce:
        measured = _all_reduce(plan, machine)
        found = dataclasses.replace(found, comm=measured)
        if measured.correct and measured.backend == "nccl" and measured.world == len(machine.gpus) > 1:
            calibration.measured(machine, measured.bus_bandwidth)
            machine = dataclasses.replace(machine, bus_bandwidth=measured.bus_bandwidth)
    return machine, found


def _plan(folder: str, *, required: bool) -> Plan | None:
    """The folder's plan, if it has one. A broken plan is for `check` to explain, unless it is `required`."""
    try:
        return plans.read(plans.find(folder)) if os.path.exists(os.path.join(folder, "trainwiz.yaml")) else None
    except TrainwizError:
        if required:
            raise
        return None


def _all_reduce(plan: Plan | None, machine: Machine) -> Comm:
    if plan:
        device, world = plan.machine.device, plan.machine.ranks_per_machine
    else:
        device, world = ("cuda", len(machine.gpus)) if machine.gpus else ("cpu", CPU_RANKS)
    backend = "gloo" if device == "cpu" else "nccl" if device == "cuda" else device
    if machine.interpreter is None or machine.interpreter.error:
        return Comm(world=world, backend=backend, error=t("the interpreter has no working torch"))
    if device not in comm.SIZE_BYTES:
        return Comm(
            world=world, backend=backend, error=t("trainwiz cannot run an all-reduce on {device}", device=device)
        )
    if device == "cuda" and world > len(machine.gpus):
        there = len(machine.gpus)
        problem = t("GPUs planned on this machine: {world}, found: {there}", world=world, there=there)
        return Comm(world=world, backend=backend, error=problem)
    with ports.claim(0) as port:
        return comm.all_reduce(machine.interpreter.python, world=world, device=device, port=port.number)
