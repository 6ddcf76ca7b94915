"""Launching what trainwiz did not write: a script with an accelerate configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz import adoption, cluster, files, rules
from trainwiz import command as commands
from trainwiz.config import Accelerate
from trainwiz.decide import decide
from trainwiz.errors import PlanError, TrainwizError, UsageError
from trainwiz.finding import Finding
from trainwiz.language import t
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.network import ports
from trainwiz.plan import Plan
from trainwiz.rules.registry import Facts, check
from trainwiz.store import plans, runs
from trainwiz.ui import console
from trainwiz.workflows import facts
from trainwiz.workflows.check import configurations, preflight
from trainwiz.workflows.launch import debugger, dry_run, ops, supervision
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.request import Request

_TAKEN_CARE_OF = ("TW657", "TW658", "TW667")
"""What stops accelerate but not a launch by trainwiz: an unquoted no, several CPU processes."""
_ABOUT = ("machine.", "precision.", "strategy.", "python")
"""The keys of a plan that a configuration decides."""
_LEFT_OUT: Mapping[str, Any] = {
    "machine.num_processes": 1,
    "strategy.kind": "single",
    "strategy.zero_stage": None,
    "strategy.offload_optimizer_device": "none",
    "strategy.offload_param_device": "none",
    "strategy.zero3_init": False,
    "strategy.zero3_save_16bit_model": False,
    "precision.mixed_precision": "no",
}
"""What accelerate does where its file says nothing."""


def launch(request: Request) -> int:
    """Check what can be checked, run the script, and return its exit code; the records are those of any run."""
    _check_usage(request)
    _name_misplaced(request)
    values = plans.document(request.config).values
    machine = facts.machine(machine_file=request.machine or None, python=request.python, folder=os.curdir)
    findings, plan = _findings(request, machine)
    if not request.dry_run:
        preflight.insist(findings)
        if plan:
            ops.build_if_possible(plan, python=request.python, machine=machine)
    world = max(1, _whole_number(values.get("num_processes"), 1))
    with ports.claim(_whole_number(values.get("main_process_port"), 29500)) as port:
        command = commands.for_accelerate_config(
            values,
            config_path=request.config,
            script=request.script,
            arguments=request.arguments,
            python=request.python,
            folder=os.curdir,
            port=port.number,
            machine=machine,
            inherited=os.environ,
            options=_place(request, values),
        )
        if command.launcher:
            _refuse_ranks_apart(request, values, world)
        debugged = debugger.chosen(request, world=world, launcher=command.launcher)
        with debugger.claimed(debugged) as debug_ports:
            here = Path()
            prepared = Prepared(
                request=request,
                machine=machine,
                command=debugger.applied(command, debug_ports),
                run=runs.named(here, runs.next_name(here)) if request.dry_run else runs.create(here),
                ranks=range(world),
                config_values=values,
                debug_ports=debug_ports,
            )
            if request.dry_run:
                return dry_run.show(prepared, findings)
            if launcher := command.launcher:
                console.talk(
                    t(
                        "launching through {launcher}, because trainwiz does not know everything in {config}",
                        launcher=launcher,
                        config=request.config,
                    )
                )
            return supervision.run(prepared)


def _check_usage(request: Request) -> None:
    script = request.script
    if not script:
        raise UsageError(
            say("--config needs a script to launch"),
            say("run: trainwiz launch --config accelerate.yaml train.py --lr 1e-4"),
        )
    if request.resume:
        raise UsageError(
            say("--resume only works with trainwiz projects; {script} resumes in its own way", script=script),
            say("pass {script} its own argument for resuming", script=script),
        )
    if request.auto_batch:
        raise UsageError(
            say("--auto-batch only works with trainwiz projects: {script} sets its batch size itself", script=script)
        )
    if not Path(script).is_file():
        raise UsageError(say("script {script} does not exist", script=script))


def _name_misplaced(request: Request) -> None:
    """Name options of trainwiz that go to the script, if its text knows none of that name: --dry-run would train."""
    own = {
        f"--{field.name.replace('_', '-')}"
        for field in dataclasses.fields(Request)
        if field.metadata.get("names") == ""
    }
    given = [word for word in request.arguments if word.partition("=")[0] in own]
    if not given:
        return
    try:
        text = files.read_text(Path(request.script)).replace("-", "_")
    except (OSError, ValueError):
        return
    strange = [word for word in given if word.partition("=")[0].removeprefix("--").replace("-", "_") not in text]
    if strange:
        console.talk(
            t(
                "{words}: passed to {script}, like everything after it; trainwiz's options go before the script",
                words=" ".join(strange),
                script=request.script,
            ),
            style="warning",
        )


def _refuse_ranks_apart(request: Request, values: Mapping[str, Any], world: int) -> None:
    """Stop before accelerate starts one process on each machine, all of which would train alone and report success."""
    files = configurations.load([request.config], script=None, versions={}, here=False)
    if not files.findings(["TW667"], []):
        return
    machines = max(1, _whole_number(values.get("num_machines"), 1))
    command = ["torchrun", f"--nproc-per-node {max(1, world // machines)}"]
    if machines > 1:
        address, port = (
            values.get("main_process_ip") or "ADDRESS",
            _whole_number(values.get("main_process_port"), 29500),
        )
        command += [f"--nnodes {machines}", "--node-rank RANK", f"--master-addr {address}", f"--master-port {port}"]
    raise TrainwizError(
        say(
            "{config}: accelerate launch would start processes that train alone, one on each machine, instead of "
            "{world} together",
            config=request.config,
            world=world,
        ),
        say("start it on each machine with: {command}", command=" ".join([*command, request.script])),
    )


def _place(request: Request, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Options for accelerate that say which of several machines this is; what is typed comes before the file.

    Raises `UsageError` where that is unknown or cannot be.
    """
    machines, rank = _whole_number(values.get("num_machines"), 1), request.machine_rank
    if machines == 1:
        if rank:
            raise UsageError(
                say("--machine-rank {rank}, but {config} has one machine", rank=rank, config=request.config),
                say("set num_machines in {config}", config=request.config),
            )
        return ()
    cluster.agree(machines, os.environ)
    rank = cluster.machine_rank(os.environ) if rank is None else rank
    rank = values.get("machine_rank") if rank is None else rank
    rank = cluster.checked_rank(machines, 0 if rank is None and request.dry_run else rank)
    address = None if values.get("main_process_ip") else cluster.address(os.environ)
    return ("--machine_rank", str(rank), *(("--main_process_ip", address) if address else ()))


def _findings(request: Request, machine: Machine) -> tuple[tuple[Finding, ...], Plan | None]:
    """What the rules say of the files and their script, of the machine, and of the part of a plan that they hold.

    And that part of a plan, with trainwiz's defaults for the rest.
    """
    read = request.script if request.script.endswith(".py") else None
    files = configurations.load([request.config], script=read, versions=_versions(machine), here=not request.machine)
    in_files = files.findings([], [*request.ignore, *_TAKEN_CARE_OF])
    plan = plan_of(files.accelerate(request.config), on_gpus=bool(machine.gpus))
    applicable = [r for r in rules.load() if "project" not in r.needs and "estimate" not in r.needs]
    chosen = [r for r in applicable if "plan" not in r.needs or (plan and r.field.startswith(_ABOUT))]
    return (*in_files, *check(Facts(plan=plan, machine=machine), rules=chosen, ignore=request.ignore)), plan


def _versions(machine: Machine) -> dict[str, str]:
    """Those of the interpreter that will train."""
    packages = machine.interpreter.packages if machine.interpreter else {}
    return {name: version for name in ("accelerate", "deepspeed") if (version := packages.get(name))}


def plan_of(accelerate: Accelerate, *, on_gpus: bool) -> Plan | None:
    """The machine, precision and strategy of a configuration as a plan; None where trainwiz starts no such ranks.

    An import asks what the file says; a launch, where it really runs: one process takes the GPUs that there are
    (`on_gpus`), and DeepSpeed's own variable moves it to the CPU.
    """
    if accelerate.kind not in commands.DIRECT_TYPES:
        return None
    carried = adoption.adopt(accelerate, None).carried
    changes = {key: one.value for key, one in carried.items() if key.startswith(_ABOUT)}
    on_cpu = accelerate.get("use_cpu") is True or changes.get("machine.device") == "cpu"
    on_cpu = on_cpu or (accelerate.kind == "NO" and not on_gpus) or os.environ.get("DS_ACCELERATOR") == "cpu"
    try:
        return decide({**_LEFT_OUT, **changes, "machine.device": "cpu" if on_cpu else "cuda"}, None).plan
    except PlanError:
        return None


def _whole_number(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise
