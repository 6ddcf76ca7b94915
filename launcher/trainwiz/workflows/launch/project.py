"""Launching a project: its plan checked here and now, its world built, and run."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.cli.launch import Options
from trainwiz.errors import Refused, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.command import Command
    from trainwiz.finding import Finding
    from trainwiz.machine import Machine
    from trainwiz.network.ports import Port
    from trainwiz.plan import Plan
    from trainwiz.store.runs import Run
    from trainwiz.workflows.launch.machines import Place
    from trainwiz.workflows.launch.supervise import Launch

SCRIPT = "train.py"
_RESUMING = ("--resume", "auto")


@dataclass(frozen=True, kw_only=True)
class World:
    """A plan's world on this machine. `place` is set where there are several machines."""

    plan: Plan
    folder: Path
    machine: Machine
    options: Options
    place: Place | None = None
    continues: Run | None = None
    added: Mapping[str, str] = field(default_factory=dict)
    debugged: Sequence[int] = ()


def launch(options: Options) -> int:
    """Check and run a project; return the training's exit code. Raises `Refused` on findings of level error."""
    from trainwiz.store import plans
    from trainwiz.workflows import facts
    from trainwiz.workflows.check import preflight
    from trainwiz.workflows.launch import debugger

    plan_file = plans.find(options.folder)
    plan, folder = plans.read(plan_file), plan_file.parent
    machine = facts.machine(
        machine_file=options.machine_file,
        python=options.python,
        folder=str(folder),
        interfaces=plan.machine.num_machines > 1,
    )
    findings = preflight.of_plan(_addressed(plan), str(folder), machine, ignore=options.ignore)
    if not options.dry_run:
        preflight.show(findings)
        preflight.refuse_errors(findings)
    world = World(
        plan=plan,
        folder=folder,
        machine=machine,
        options=options,
        debugged=debugger.check(options, world=plan.machine.num_processes, machines=plan.machine.num_machines),
        place=_place(plan, options),
        continues=_continued(plan, folder, options),
    )
    if options.dry_run:
        return _rehearsed(world, findings)
    if not machine.probed:
        raise Refused(
            say("{file} describes a machine; a launch happens on the one that is here", file=options.machine_file),
            say("leave --machine away, or add --dry-run to see what would be done there"),
        )
    return _start(world)


def _addressed(plan: Plan) -> Plan:
    """The plan with the address of machine 0 that the environment knows, where the plan itself has none."""
    if plan.machine.num_machines == 1 or plan.machine.main_process_ip:
        return plan
    from trainwiz import plan as plans
    from trainwiz.workflows.launch import machines

    address = machines.known_address()
    return plans.with_changes(plan, {"machine.main_process_ip": address}) if address else plan


def _place(plan: Plan, options: Options) -> Place | None:
    if plan.machine.num_machines == 1:
        return None
    if options.max_restarts or options.auto_batch:
        raise UsageError(
            say("--max-restarts and --auto-batch are for one machine; the plan has {n}", n=plan.machine.num_machines),
            say("let the scheduler start the job again: a preempted run goes on by itself, a failed one with --resume"),
        )
    from trainwiz.workflows.launch import machines

    rank = options.machine_rank
    return machines.place(plan, 0 if rank is None and options.dry_run else rank)


def _continued(plan: Plan, folder: Path, options: Options) -> Run | None:
    # Over several machines, machine 0 says which run goes on; the others may not even see it.
    if plan.machine.num_machines > 1 and options.machine_rank:
        return None
    from trainwiz.store import runs
    from trainwiz.workflows.launch import resume

    if not options.resume:
        return None if options.new else _preempted(plan, folder, options)
    run = runs.to_continue(folder, options.resume)
    before = run.read("command").get("plan_hash")
    if before and before != plan.digest():
        console.talk(t("note: the plan has changed since run {name}", name=run.name), style="warning")
    resume.refuse_what_cannot_go_on(plan, run, options.arguments)
    return run


def _preempted(plan: Plan, folder: Path, options: Options) -> Run | None:
    from trainwiz.record import redaction
    from trainwiz.store import runs

    run = runs.preempted(folder)
    if run is None:
        return None
    command = run.read("command")
    same_plan = command.get("plan_hash") == plan.digest()
    if same_plan and command.get("arguments") == redaction.arguments(options.arguments):
        console.talk(
            t("run {name} was preempted: going on from its last checkpoint (--new starts anew)", name=run.name),
            style="warning",
        )
        return run
    console.talk(
        t(
            "run {name} was preempted, but the plan or the arguments differ: starting anew (--resume goes on)",
            name=run.name,
        ),
        style="warning",
    )
    return None


def _start(world: World) -> int:
    from trainwiz.network.ports import Port
    from trainwiz.store import runs
    from trainwiz.workflows.launch import debugger, supervise

    if world.place is None:
        port = _claimed(world.plan)
        run = runs.create(world.folder, continues=world.continues)
    else:
        from trainwiz.workflows.launch import machines

        port = Port(world.place.port, None)
        run, continues, added = machines.call_roll(
            world.place, world.plan, world.folder, wait=world.options.wait, continues=world.continues
        )
        world = dataclasses.replace(world, added=added, continues=continues)
    try:
        for line in by_hand(world, run):
            console.talk(console.styled(f"  {line}", "dim"))
        console.talk(t("this run: {folder}", folder=supervise.near(run.folder)))
        with debugger.applied(prepare(world, run, port.number), world.debugged) as prepared:
            debugger.tell(prepared.debugged)
            return supervise.run(prepared)
    finally:
        port.release()


def _rehearsed(world: World, findings: Sequence[Finding]) -> int:
    from trainwiz.network import ports
    from trainwiz.store import runs
    from trainwiz.workflows.launch import debugger, dry_run

    run = runs.Run(world.folder / runs.RUNS / runs.next_name(world.folder))
    port = _claimed(world.plan) if world.place is None else ports.Port(world.place.port, None)
    port.release()
    with debugger.applied(prepare(world, run, port.number), world.debugged) as prepared:
        return dry_run.show(prepared, findings, by_hand=by_hand(world, run), as_json=world.options.as_json)


def _claimed(plan: Plan) -> Port:
    from trainwiz.network import ports

    wanted = plan.machine.main_process_port
    port = ports.claim(wanted)
    if wanted not in (0, port.number) and plan.machine.num_processes > 1:
        console.talk(t("port {wanted} is taken; using {port}", wanted=wanted, port=port.number))
    return port


def prepare(world: World, run: Run, port: int) -> Launch:
    """All that is needed to run the world in a run's folder."""
    from trainwiz.workflows.launch.supervise import Launch

    plan, place = world.plan, world.place
    first = place.rank * plan.machine.ranks_per_machine if place else 0
    workers = None
    if place:
        from trainwiz.process.torchrun import WorkerLogs

        workers = WorkerLogs(run.logs.resolve(), first_rank=first)
    arguments = " ".join(world.options.arguments)
    return Launch(
        command=_command(world, run, port, workers.options if workers else ()),
        run=run,
        machine=world.machine,
        grace=world.options.grace,
        # An overridden length is the script's to know.
        total_updates=None if "n_steps" in arguments or "n_epochs" in arguments else _updates(plan),
        workers=workers,
        first_rank=first,
        # While the run goes on, torchrun there listens for the others.
        first_machine=(place.address, place.port) if place and place.rank else None,
        ranks_here=plan.machine.ranks_per_machine if place else plan.machine.num_processes,
        plan=plan,
        plan_hash=plan.digest(),
        resumed_from=world.continues.name if world.continues else None,
        resume=_resume_line(world),
        arguments=world.options.arguments,
        again=() if world.continues else _RESUMING,
        restarts_per_hour=world.options.restarts_per_hour,
        auto_batch=world.options.auto_batch,
        spares=world.options.spares,
        **watched_over(plan, world.options),
    )


def watched_over(plan: Plan, options: Options) -> dict[str, Any]:
    """What happens on a hang or a failure: as the command line says, else the plan, as fields of a `Launch`."""
    planned = plan.supervision
    restarts = planned.max_restarts if options.max_restarts is None else options.max_restarts
    return {
        # What restarts ranks has to see all of them.
        "max_restarts": restarts if plan.machine.num_machines == 1 else 0,
        "hang_limit": planned.hang_limit if options.hang_limit is None else options.hang_limit,
        "stop_on_hang": (options.on_hang or planned.on_hang) == "stop",
    }


def _resume_line(world: World) -> str:
    from trainwiz.record import redaction

    options = world.options
    words = ["trainwiz", "launch", *([] if options.folder == "." else [options.folder]), "--resume"]
    if world.place:
        words += ["--machine-rank", str(world.place.rank)]
    if options.arguments:
        words += ["--", *redaction.arguments(options.arguments)]
    return shlex.join(words)


def by_hand(world: World, run: Run) -> list[str]:
    """The lines that do the same without trainwiz, to be typed in the project's folder."""
    from trainwiz import command
    from trainwiz.record import redaction

    arguments = redaction.arguments(world.options.arguments)
    if world.continues:
        arguments = [*_script_arguments(world, run), *arguments]
    lines = command.equivalents(
        world.plan, script=SCRIPT, arguments=arguments, machine_rank=world.place.rank if world.place else 0
    )
    typed = [command.line(({**environ, **world.added}, argv)) for environ, argv in lines]
    return [t("the same by hand, in {folder}:", folder=world.folder), *typed]


def _command(world: World, run: Run, port: int, torchrun_options: tuple[str, ...]) -> Command:
    from trainwiz import command

    arguments = (*_script_arguments(world, run), *world.options.arguments)
    python, folder = world.options.python, str(world.folder)
    if world.place is None:
        return command.for_plan(
            world.plan,
            python=python,
            folder=folder,
            script=SCRIPT,
            arguments=arguments,
            port=port,
            machine=world.machine,
            inherited=os.environ,
        )
    from trainwiz.workflows.launch import machines

    torchrun = command.torchrun_for_plan(
        world.plan,
        python=python,
        folder=folder,
        script=SCRIPT,
        arguments=arguments,
        port=port,
        machine_rank=world.place.rank,
        main_process_ip=world.place.address,
        machine=world.machine,
        inherited=os.environ,
    )
    return machines.completed(torchrun, torchrun_options, world.added)


def _script_arguments(world: World, run: Run) -> tuple[str, ...]:
    # Below the folder that the script runs in, whatever that is called from here.
    output = str(run.folder.relative_to(world.folder))
    return ("--output_dir", output, *(_RESUMING if world.continues else ()))


def _updates(plan: Plan) -> int | None:
    return plan.schedule.n_steps if plan.schedule.train_strategy == "steps" else None
