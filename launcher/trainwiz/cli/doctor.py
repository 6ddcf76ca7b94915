"""`trainwiz doctor`: look at the environment that will train, and say what to type to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.checkup.surroundings import Comm, Surroundings
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan

CPU_RANKS = 2
"""Ranks of `--comm` where neither a plan nor GPUs say how many."""


def doctor(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Where the training would run.")),
    as_json: bool = typer.Option(False, "--json", help=t("The machine and the verdicts as JSON.")),
    machine_file: str = typer.Option(
        "", "--machine", metavar="FILE", help=t("Judge the machine that a file of `doctor --json` describes.")
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The interpreter that will train.")),
    comm: bool = typer.Option(False, "--comm", help=t("Also run a real all-reduce over the planned ranks.")),
) -> None:
    """Exit 1 if anything would stop a training."""
    _sensible(folder, machine_file, python, comm)
    if machine_file:
        from trainwiz.workflows import facts

        machine, around = facts.machine(machine_file=machine_file, python=None, folder=folder), None
    else:
        machine, around = _look(folder, python or None, comm)
    _report(machine, around, as_json=as_json)


def _sensible(folder: str, machine_file: str, python: str, comm: bool) -> None:
    import os

    if machine_file and (python or comm):
        raise UsageError(
            say(
                "--machine describes another machine, with its interpreter; {option} looks at this one",
                option="--python" if python else "--comm",
            ),
            say("leave one of them out"),
        )
    if not os.path.isdir(folder):
        raise UsageError(say("there is no folder {folder}", folder=folder), say("name a folder, or leave it out"))


def _look(folder: str, python: str | None, comm: bool) -> tuple[Machine, Surroundings]:
    """Everything that is slow at once: torch, DeepSpeed and the hub."""
    import dataclasses
    import sys
    from concurrent.futures import ThreadPoolExecutor

    from trainwiz.checkup.surroundings import Port, Surroundings
    from trainwiz.network import ports
    from trainwiz.probe import hub, interpreter, library_caches, locks, ops
    from trainwiz.workflows import facts

    executable = interpreter.located(python or sys.executable)
    if sys.stderr.isatty():
        console.talk(t("looking at this machine and at {python} …", python=executable), style="dim")
    plan = _plan(folder) if not comm else _plan_or_error(folder)
    port = plan.machine.main_process_port if plan else 29500
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
    if comm:
        found = dataclasses.replace(found, comm=_all_reduce(plan, machine))
    return machine, found


def _plan(folder: str) -> Plan | None:
    # A broken plan is for `check` to explain.
    try:
        return _plan_or_error(folder)
    except TrainwizError:
        return None


def _plan_or_error(folder: str) -> Plan | None:
    import os

    from trainwiz.store import plans

    return plans.read(plans.find(folder)) if os.path.exists(os.path.join(folder, "trainwiz.yaml")) else None


def _all_reduce(plan: Plan | None, machine: Machine) -> Comm:
    from trainwiz.checkup.surroundings import Comm
    from trainwiz.network import ports
    from trainwiz.probe import comm

    if plan:
        device, world = plan.machine.device, plan.machine.ranks_per_machine
    else:
        device, world = ("cuda", len(machine.gpus)) if machine.gpus else ("cpu", CPU_RANKS)
    backend = "gloo" if device == "cpu" else "nccl" if device == "cuda" else device
    if machine.interpreter is None or machine.interpreter.error:
        return Comm(world=world, backend=backend, error=t("the interpreter has no working torch"))
    if device not in comm.SIZE_BYTES:
        return Comm(
            world=world, backend=backend, error=t("not known how to run an all-reduce on {device}", device=device)
        )
    if device == "cuda" and world > len(machine.gpus):
        there = len(machine.gpus)
        problem = t("planned GPUs on this machine: {world}, there are: {there}", world=world, there=there)
        return Comm(world=world, backend=backend, error=problem)
    port = ports.claim(0)
    try:
        return comm.all_reduce(machine.interpreter.python, world=world, device=device, port=port.number)
    finally:
        port.release()


def _report(machine: Machine, around: Surroundings | None, *, as_json: bool) -> None:
    from trainwiz import rules
    from trainwiz.checkup import checkup
    from trainwiz.rules.registry import Facts, check
    from trainwiz.store import machines
    from trainwiz.ui import doctor as table

    own = [rule for rule in rules.of_plans() if set(rule.needs) <= {"machine"}]
    lines = checkup(machine, around, check(Facts(machine=machine), rules=own))
    errors, warnings = table.count(lines)
    if as_json:
        shown = [table.to_dict(line) for line in lines]
        console.data_json(
            {"machine": machines.to_dict(machine), "lines": shown, "errors": errors, "warnings": warnings}
        )
    else:
        table.show(lines)
    if errors:
        raise typer.Exit(1)
