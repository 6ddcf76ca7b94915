"""Launching a project: its plan is checked here and now, its world is prepared, and run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainwiz import cluster, strategies
from trainwiz import command as commands
from trainwiz.cluster import Place
from trainwiz.command import Command
from trainwiz.errors import Refused, UsageError
from trainwiz.finding import Finding, errors
from trainwiz.language import t
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.network import ports
from trainwiz.plan import Plan, with_changes
from trainwiz.probe import fingerprint
from trainwiz.process.torchrun import WorkerLogs
from trainwiz.record import redaction
from trainwiz.shell_words import quoted
from trainwiz.store import plans, runs
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows import facts
from trainwiz.workflows.check import preflight
from trainwiz.workflows.launch import (
    debugger,
    dry_run,
    formation,
    joint_build,
    machines,
    ops,
    refusal,
    resume,
    script_options,
    supervision,
)
from trainwiz.workflows.launch.attempts import RESUMING
from trainwiz.workflows.launch.machines import Gathered
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.request import Request
from trainwiz.workflows.launch.team import Team

_WAIT_SECONDS = 30.0
"""How long machines wait for each other when launched by hand."""
_JOB_WAIT_SECONDS = 600.0
"""The same in a scheduler's job: a machine may still be pulling its image when another is ready."""
_LENGTHS = frozenset({"--n_steps", "--n_epochs"})
"""Arguments of train.py, one of which must be 0."""


def launch(request: Request) -> int:
    """Check and run a project; return the training's exit code. Raises `Refused` on findings of level error."""
    plan_file = plans.find(request.folder)
    plan, folder = plans.read(plan_file), plan_file.parent
    request = dataclasses.replace(request, arguments=_with_one_length(request.arguments, plan))
    with refusal.told(request, plan, folder):
        script_options.refuse_unknown(request.arguments, folder)
        _refuse_on_one_machine(request, plan)
        fewest = formation.least(request, plan)
        debugged = debugger.chosen(request, world=plan.machine.num_processes, machines=plan.machine.num_machines)
        machine = facts.machine(
            machine_file=request.machine or None,
            python=request.python,
            folder=str(folder),
            interfaces=plan.machine.num_machines > 1,
        )
        findings = _findings(request, plan, folder, machine)
        place = _place(request, plan)
        continues = resume.continued(request, plan, folder, place)
    ranks = cluster.ranks(plan, place)
    if place is None and not request.dry_run:
        # Before there is a run, and before a port is chosen, which others could take in these minutes.
        ops.build(plan, python=request.python, machine=machine)
    with (
        _claimed_port(place, plan.machine.main_process_port, alone=len(ranks) < 2) as port,
        debugger.claimed(debugged) as debug_ports,
        _run_folder(request, folder, place, continues, plan, machine, fewest) as gathered,
    ):
        run, continues = gathered.run, gathered.continues
        arguments = ("--output_dir", str(run.folder.relative_to(folder)), *(RESUMING if continues else ()))

        def command(place: Place | None, options: Sequence[str], more: Sequence[str] = ()) -> Command:
            return commands.for_plan(
                plan,
                python=request.python,
                folder=str(folder),
                port=port,
                place=place,
                arguments=(*arguments, *request.arguments, *more),
                torchrun_options=options,
                added=gathered.environ,
                machine=machine,
                inherited=os.environ,
            )

        options = WorkerLogs(run.logs.resolve(), first_rank=ranks.start).options if place else ()
        team = Team(link=gathered.link, command=command, least=fewest) if gathered.link else None
        prepared = Prepared(
            request=request,
            machine=machine,
            command=debugger.applied(command(place, options), debug_ports),
            run=run,
            ranks=ranks,
            plan=plan,
            place=place,
            continues=continues,
            debug_ports=debug_ports,
            team=team,
        )
        by_hand = _by_hand(prepared, arguments if continues else (), gathered.environ)
        if request.dry_run:
            return dry_run.show(prepared, findings, by_hand)
        code = supervision.run(prepared, by_hand)
    # A replay compares curves, and the repository may hold a newer model.
    if plan.model.push_to_hub and code == 0 and not request.replays and not (place and place.rank):
        from trainwiz.workflows.launch import publication

        publication.publish(request.python, plan, run)
    return code


def _with_one_length(arguments: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """The script's arguments; a length that is typed replaces the plan's, also where that counts the other way."""
    words = [part for word in arguments for part in word.split("=", 1)]
    given = _LENGTHS.intersection(words)
    if len(given) != 1 or words[words.index(min(given)) + 1 :][:1] == ["0"]:  # 0 leaves it to the other
        return tuple(arguments)
    (other,) = _LENGTHS - given
    planned = plan.schedule.n_steps if other == "--n_steps" else plan.schedule.n_epochs
    return (*arguments, other, "0") if planned else tuple(arguments)


def _findings(request: Request, plan: Plan, folder: Path, machine: Machine) -> tuple[Finding, ...]:
    """What the rules find here. Raises `Refused` where that, or a machine from a file, forbids a start."""
    # An address that the job knows is not missing.
    known = ["TW613"] if cluster.address(os.environ) else []
    rank = cluster.machine_rank(os.environ) if request.machine_rank is None else request.machine_rank
    # The port is that of machine 0, which also uploads the model.
    known += ["TW616", "TW549"] if rank else ["TW549"] if request.replays else []
    if not request.dry_run:
        ops.remove_stale_locks(plan)
    findings = facts.findings(plan, str(folder), machine, ignore=[*request.ignore, *known])
    if not request.dry_run:
        if errors(findings) and facts.training_machine(plan, machine) is None:
            raise Refused(
                say("this machine has no GPU: the plan's machines are started by {kind}", kind=plan.cluster.kind),
                say("run: trainwiz submit {folder}", folder=quoted(folder)),
            )
        preflight.insist(findings)
        if not machine.probed:
            raise Refused(
                say("{file} describes a machine; a launch always runs on this machine", file=request.machine),
                say("omit --machine, or add --dry-run to see what would be done there"),
            )
    return findings


def _place(request: Request, plan: Plan) -> Place | None:
    """Where this machine stands among several; None where the plan has one. Raises `UsageError`."""
    machines = plan.machine.num_machines
    if machines == 1:
        cluster.agree(machines, os.environ)  # or each node of a job would train the same
        return None
    if request.spares:
        raise UsageError(
            say("--spares works on one machine only; the plan has {n}", n=machines),
            say("remove it: torchrun starts the ranks of several machines"),
        )
    rank = request.machine_rank
    if rank is None and request.dry_run and cluster.machine_rank(os.environ) is None:
        rank = 0
    return cluster.place(plan, rank, os.environ, folder=request.folder)


@contextlib.contextmanager
def _claimed_port(place: Place | None, wanted: int, *, alone: bool) -> Iterator[int]:
    """The port of the rendezvous, held until the launch ends; over several machines the roll-call listens on it."""
    if place:
        yield place.port
        return
    with ports.claim(wanted) as port:
        if port.wanted not in (0, port.number) and not alone:
            console.talk(t("port {wanted} is in use; using {port}", wanted=port.wanted, port=port.number))
        yield port.number


def _refuse_on_one_machine(request: Request, plan: Plan) -> None:
    if plan.machine.num_machines == 1 and formation.is_range(request.nnodes) and request.nnodes not in ("1", "1:1"):
        raise UsageError(
            say("--nnodes {word}: the plan has one machine", word=request.nnodes),
            say(
                "set the number of machines: trainwiz update {folder} --set machine.num_machines=2",
                folder=quoted(request.folder),
            ),
        )


@contextlib.contextmanager
def _run_folder(
    request: Request,
    folder: Path,
    place: Place | None,
    continues: Run | None,
    plan: Plan,
    machine: Machine,
    fewest: int,
) -> Iterator[Gathered]:
    """The run's folder, the run that it continues, and what the ranks get into their environment."""
    if request.dry_run:
        yield Gathered(run=runs.named(folder, runs.next_name(folder)), continues=continues, environ={})
        return
    if place is None:
        yield Gathered(run=runs.create(folder, continues=continues), continues=continues, environ={})
        return
    restarts = plan.supervision.max_restarts if request.max_restarts is None else request.max_restarts
    named = {"data.train": plan.data.train, "data.eval": plan.data.eval}
    call = machines.Call(
        place=place,
        project=folder,
        digest=plan.digest(),
        facts=fingerprint.facts(folder, machine, named),
        wait=request.wait or (_JOB_WAIT_SECONDS if cluster.job(os.environ) else _WAIT_SECONDS),
        typed=request.secret,
        continues=continues,
        must_share=strategies.of(plan).partitions_weights or strategies.of(plan).partitions_moments,
        goes_on=bool(restarts or request.auto_batch or fewest < place.machines),
        builds=bool(strategies.of(plan).ops(plan)),
        least=fewest,
    )
    with machines.gathered(call) as found:
        # Not before, or the others' wait for this machine would end.
        with joint_build.together(found.builders) as look:
            ops.build(plan, python=request.python, machine=machine, look=look)
        if found.builders and not found.link:
            joint_build.disconnect(found.builders)
        yield found


def _by_hand(prepared: Prepared, arguments: Sequence[str], added: Mapping[str, str]) -> list[str]:
    """The lines that do the same without trainwiz, to be typed in the project's folder."""
    assert prepared.plan
    place = prepared.place
    lines = commands.equivalents(
        with_changes(prepared.plan, {"machine.main_process_ip": place.address}) if place else prepared.plan,
        arguments=[*arguments, *redaction.arguments(prepared.request.arguments)],
        machine_rank=place.rank if place else 0,
    )
    typed = [commands.line(({**environ, **added}, argv)) for environ, argv in lines]
    return [t("to do the same by hand, in {folder}:", folder=prepared.command.cwd), *typed]
