"""Several machines that find each other, and the port where the ranks meet."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule


@rule("TW611", level=Level.ERROR, field="machine.num_processes")
def world_divides_over_machines(plan: Plan) -> Iterator[Violation]:
    """The world divides evenly over the machines.

    Without it: accelerate rounds down: 2 machines and 3 processes become 1 rank on each, a world of 2, and nothing says
    so. The real batch is then a third smaller than planned.
    Why: num_processes counts ranks over all machines, not on each.
    Instead: machines × GPUs per machine.
    Source: seen with accelerate 1.15
    """
    world, machines = plan.machine.num_processes, plan.machine.num_machines
    if world >= machines and world % machines:
        low, high = world // machines * machines, (world // machines + 1) * machines
        yield violation(
            "machine.num_processes {world} is not divisible by machine.num_machines {machines}",
            remedy("set machine.num_processes {low} or {high}", {"machine.num_processes": high}, low=low, high=high),
            world=world,
            machines=machines,
        )


@rule("TW612", level=Level.ERROR, field="machine.num_processes")
def every_machine_has_a_rank(plan: Plan) -> Iterator[Violation]:
    """Each machine has at least one rank.

    Without it: a bare `AssertionError` of torchrun's, 5 seconds after the start.
    Why: num_processes counts ranks over all machines, not on each.
    Instead: machines × GPUs per machine.
    Source: seen with accelerate 1.15, 2 machines and 1 process
    """
    world, machines = plan.machine.num_processes, plan.machine.num_machines
    if world < machines:
        yield violation(
            "machine.num_processes is {world} for {machines} machines; it counts the ranks of all of them",
            remedy(
                "set machine.num_processes {machines} or a multiple of it",
                {"machine.num_processes": machines},
                machines=machines,
            ),
            world=world,
            machines=machines,
        )


@rule("TW613", level=Level.ERROR, field="machine.main_process_ip")
def machines_know_where_to_meet(plan: Plan) -> Iterator[Violation]:
    """Several machines have an address to meet at.

    Without it: each machine waits for the others at its own loopback address, 15 minutes: `Timed out after 901 seconds
    waiting for clients. 1/2 clients joined.` on the first, `The client socket has timed out` on the others. `accelerate
    launch` looks for a machine called None.
    Why: torchrun's rendezvous is at main_process_ip; absent, it is 127.0.0.1.
    Instead: an address of the first machine that the others reach (`hostname -I` there).
    Source: seen with torchrun 2.13 and accelerate 1.15 on two hosts; huggingface/accelerate issues 1239, 2818
    """
    if plan.machine.num_machines > 1 and plan.machine.main_process_ip is None:
        yield violation(
            "machine.num_machines is {machines}, and machine.main_process_ip is not given",
            remedy("set machine.main_process_ip to an address of the first machine (hostname -I there)"),
            machines=plan.machine.num_machines,
        )


@rule("TW614", level=Level.ERROR, field="machine.main_process_ip")
def meeting_place_is_no_loopback(plan: Plan) -> Iterator[Violation]:
    """Several machines do not meet at a loopback address.

    Without it: each machine meets itself, and waits 15 minutes for the others.
    Why: 127.0.0.1, ::1 and localhost are another place on each machine.
    Instead: an address of the first machine that the others reach (`hostname -I` there).
    Source: seen with torchrun 2.13; https://www.rfc-editor.org/rfc/rfc6890
    """
    address = plan.machine.main_process_ip
    if plan.machine.num_machines > 1 and address is not None and _is_loopback(address):
        yield violation(
            "machine.main_process_ip {address} is a different place on each of the {machines} machines",
            remedy("set machine.main_process_ip to an address of the first machine (hostname -I there)"),
            address=address,
            machines=plan.machine.num_machines,
        )


@rule("TW615", level=Level.ERROR, field="machine.main_process_port")
def machines_agree_on_a_port(plan: Plan) -> Iterator[Violation]:
    """Several machines meet at a fixed port.

    Without it: the first machine opens a port of its own choice, and the others call at port 0: nobody meets, even on
    one machine.
    Why: port 0 means "any free port", which only one machine can know.
    Instead: a port that is open between the machines, 29500 by habit.
    Source: seen with torchrun 2.13
    """
    if plan.machine.num_machines > 1 and plan.machine.main_process_port == 0:
        yield violation(
            "machine.main_process_port is 0 with {machines} machines",
            remedy("set machine.main_process_port 29500", {"machine.main_process_port": 29500}),
            machines=plan.machine.num_machines,
        )


@rule("TW616", level=Level.ERROR, field="machine.main_process_port")
def meeting_port_is_free(plan: Plan, machine: Machine, project: Project) -> Iterator[Violation]:
    """On the machine where several meet, the port is free.

    Without it: `EADDRINUSE` on that machine (from `accelerate launch`, a ConnectionError). The others are taken up by
    what listens there, and wait for its answer without end: torchrun's 15 minutes do not count.
    Why: something listens there already, often the ranks of a run that was killed.
    Instead: another port, the same on all machines; or end what listens (`ss -ltnp`).
    Source: seen with torchrun 2.13; `prepare_multi_gpu_env` in accelerate 1.15
    """
    port = project.port_in_use
    if plan.machine.num_machines > 1 and port is not None and machine.probed and _is_here(plan, machine):
        yield violation(
            "port {port}, where {machines} machines are to meet, is taken on this one",
            remedy(
                "set machine.main_process_port {other}, or end what listens there (ss -ltnp)",
                {"machine.main_process_port": port + 1},
                other=port + 1,
            ),
            port=port,
            machines=plan.machine.num_machines,
        )


@rule("TW617", level=Level.HINT, field="machine.main_process_port")
def port_is_free(plan: Plan, machine: Machine, project: Project) -> Iterator[Violation]:
    """On one machine, the planned port is free.

    Without it: `trainwiz launch` takes another port by itself. By hand, torchrun may end with `EADDRINUSE`, or two
    trainings meet at one port and one of them waits for ever.
    Why: something listens there already: another training, or the ranks of a run that was killed.
    Instead: machine.main_process_port 0 (any free port), or end what listens (`ss -ltnp`).
    Source: https://pytorch.org/docs/stable/elastic/run.html
    """
    port = project.port_in_use
    if plan.machine.num_machines == 1 and plan.machine.num_processes > 1 and port is not None and machine.probed:
        yield violation(
            "port {port} is taken on this machine; trainwiz launch takes another",
            remedy(
                "by hand, give another: machine.main_process_port {other}",
                {"machine.main_process_port": port + 1},
                other=port + 1,
            ),
            port=port,
        )


@rule("TW618", level=Level.WARNING, field="supervision.max_restarts")
def restarts_see_all_ranks(plan: Plan) -> Iterator[Violation]:
    """Restarts by trainwiz are for one machine.

    Without it: a failure ends the run on all machines, as if supervision.max_restarts were 0.
    Why: each machine's launch sees its own ranks only; what begins again must be sure that all others have ended.
    Instead: let the scheduler start the job again (`sbatch --requeue`): a preempted run goes on by itself, a failed one
    with `trainwiz launch --resume`.
    Source: docs/reliability.md
    """
    if plan.supervision.max_restarts and plan.machine.num_machines > 1:
        yield violation(
            "supervision.max_restarts is {n}, which does nothing over {machines} machines",
            remedy(
                "set supervision.max_restarts 0, and let the scheduler start the job again",
                {"supervision.max_restarts": 0},
            ),
            n=plan.supervision.max_restarts,
            machines=plan.machine.num_machines,
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.startswith("localhost.")


def _is_here(plan: Plan, machine: Machine) -> bool:
    """Whether the meeting place is an address or the name of this machine."""
    here = {address for interface in machine.interfaces for address in interface.addresses} | {machine.hostname}
    return plan.machine.main_process_ip in here
