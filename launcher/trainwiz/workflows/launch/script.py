"""Launching what trainwiz did not write: a script with an accelerate configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.cli.launch import Options
from trainwiz.errors import PlanError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.command import Command
    from trainwiz.finding import Finding
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan

_KINDS = {"NO": "single", "MULTI_CPU": "ddp", "MULTI_GPU": "ddp", "DEEPSPEED": "deepspeed", "FSDP": "fsdp"}
_TAKEN_CARE_OF = ("TW657", "TW658", "TW667")
"""What accelerate would stumble over, and a launch by trainwiz does not: an unquoted no, several CPU processes."""
_ABOUT = ("machine.", "precision.", "strategy.", "python")


def launch(options: Options, *, config: str, script: str) -> int:
    """Check what can be checked, run the script, and return its exit code; the records are those of any run."""
    from trainwiz.network import ports
    from trainwiz.store import plans, runs
    from trainwiz.workflows import facts
    from trainwiz.workflows.check import preflight
    from trainwiz.workflows.launch import debugger, dry_run, supervise

    _check_usage(options, script)
    values = plans.document(config).values
    folder = Path()
    machine = facts.machine(machine_file=options.machine_file, python=options.python, folder=str(folder))
    findings = _findings(values, machine, options, config=config, script=script)
    port = ports.claim(_port(values))
    command = _command(options, values, config, script, machine, port.number)
    chosen = debugger.check(options, world=max(1, _count(values)), launcher=command.launcher)
    if options.dry_run:
        port.release()
        run = runs.Run(folder / runs.RUNS / runs.next_name(folder))
        prepared = supervise.Launch(command=command, run=run, machine=machine, grace=options.grace, config=config)
        return dry_run.show(prepared, findings, by_hand=(), as_json=options.as_json)
    preflight.show(findings)
    preflight.refuse_errors(findings)
    try:
        run = runs.create(folder)
        if command.launcher:
            console.talk(
                t("through {launcher}, since not all of {config} is known", launcher=command.launcher, config=config)
            )
        console.talk(t("this run: {folder}", folder=run.folder))
        prepared = supervise.Launch(
            command=command,
            run=run,
            machine=machine,
            grace=options.grace,
            config=config,
            config_values=values,
            ranks_here=max(1, _count(values)),
            arguments=options.arguments,
            max_restarts=options.max_restarts or 0,
            restarts_per_hour=options.restarts_per_hour,
            hang_limit=options.hang_limit or 0.0,
            stop_on_hang=options.on_hang == "stop",
        )
        with debugger.applied(prepared, chosen) as debugged:
            debugger.tell(debugged.debugged)
            return supervise.run(debugged)
    finally:
        port.release()


def _check_usage(options: Options, script: str) -> None:
    if not script:
        raise UsageError(
            say("--config needs the script to launch"),
            say("trainwiz launch --config accelerate.yaml train.py --lr 1e-4"),
        )
    if options.resume:
        raise UsageError(
            say("--resume is for projects of trainwiz; how {script} resumes is its own", script=script),
            say("give {script} its own argument for it", script=script),
        )
    if options.auto_batch:
        raise UsageError(
            say("--auto-batch is for projects of trainwiz: how {script} takes its batch is its own", script=script)
        )
    if not Path(script).is_file():
        raise UsageError(say("there is no script {script}", script=script))


def _command(
    options: Options, values: Mapping[str, Any], config: str, script: str, machine: Machine, port: int
) -> Command:
    from trainwiz import command

    return command.for_accelerate_config(
        values,
        config_path=config,
        script=script,
        arguments=options.arguments,
        python=options.python,
        folder=os.curdir,
        port=port,
        machine=machine,
        inherited=os.environ,
    )


def _findings(
    values: Mapping[str, Any], machine: Machine, options: Options, *, config: str, script: str
) -> tuple[Finding, ...]:
    """What the rules say of the files and their script, of the machine, and of the part of a plan that they hold."""
    from trainwiz import rules
    from trainwiz.rules.registry import Facts, check
    from trainwiz.workflows.check import configurations

    plan = plan_of(values, on_gpus=bool(machine.gpus))
    applicable = [r for r in rules.load() if "project" not in r.needs and "estimate" not in r.needs]
    chosen = [r for r in applicable if "plan" not in r.needs or (plan and r.field.startswith(_ABOUT))]
    read = script if script.endswith(".py") else None
    files = configurations.load([config], script=read, versions=_versions(machine), here=not options.machine_file)
    in_files = files.findings([], [*options.ignore, *_TAKEN_CARE_OF])
    return (*in_files, *check(Facts(plan=plan, machine=machine), rules=chosen, ignore=options.ignore))


def _versions(machine: Machine) -> dict[str, str]:
    """Those of the interpreter that will train."""
    packages = machine.interpreter.packages if machine.interpreter else {}
    return {name: version for name in ("accelerate", "deepspeed") if (version := packages.get(name))}


def plan_of(values: Mapping[str, Any], *, on_gpus: bool) -> Plan | None:
    """The machine, precision and strategy of an accelerate configuration as a plan; None where it has no such form."""
    from trainwiz import plan as plans
    from trainwiz.command.foreign import normalised

    settings = normalised(values)
    kind = _KINDS.get(settings["distributed_type"])
    if kind is None:
        return None
    on_cpu = settings.get("use_cpu") is True or settings["distributed_type"] == "MULTI_CPU"
    # One process takes what there is; DeepSpeed's own variable moves it to the CPU.
    on_cpu = on_cpu or (kind == "single" and not on_gpus) or os.environ.get("DS_ACCELERATOR") == "cpu"
    changes = {
        "machine.device": "cpu" if on_cpu else "cuda",
        "machine.num_processes": max(1, _count(values)),
        "machine.num_machines": settings["num_machines"],
        "machine.main_process_ip": values.get("main_process_ip"),
        "precision.mixed_precision": str(settings.get("mixed_precision") or "no"),
        "strategy.kind": kind,
    }
    if kind == "deepspeed":
        deepspeed = settings.get("deepspeed_config", {})
        changes["strategy.zero_stage"] = deepspeed.get("zero_stage", 2)
        for name in ("offload_optimizer_device", "offload_param_device"):
            changes[f"strategy.{name}"] = str(deepspeed.get(name) or "none")
    try:
        return plans.with_changes(plans.Plan(), changes)
    except PlanError:
        return None


def _count(values: Mapping[str, Any]) -> int:
    value = values.get("num_processes")
    return value if isinstance(value, int) else 1


def _port(values: Mapping[str, Any]) -> int:
    value = values.get("main_process_port")
    return value if isinstance(value, int) else 29500
