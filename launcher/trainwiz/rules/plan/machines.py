"""Several machines that find each other, and the port where the ranks meet."""

from __future__ import annotations

import ipaddress

from trainwiz import schedulers
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule


@rule("TW611", level=Level.ERROR, field="machine.num_processes")
def world_divides_over_machines(plan: Plan) -> Violations:
    """machine.num_processes must be divisible by the number of machines.

    Without it: accelerate rounds down: 3 processes on 2 machines become 1 rank on each, a world size of 2, without
    any message. The real batch is then a third smaller than planned.
    Why: num_processes counts the ranks on all machines, not on each.
    Instead: set it to machines × GPUs per machine.
    Source: seen with accelerate 1.15
    """
    world, machines = plan.machine.num_processes, plan.machine.num_machines
    if world >= machines and world % machines:
        low, high = world // machines * machines, (world // machines + 1) * machines
        yield violation(
            "machine.num_processes {num_processes} is not divisible by machine.num_machines {num_machines}",
            remedy("set machine.num_processes to {low} or {high}", {"machine.num_processes": high}, low=low, high=high),
        )


@rule("TW612", level=Level.ERROR, field="machine.num_processes")
def every_machine_has_a_rank(plan: Plan) -> Violations:
    """Each machine must have at least one rank.

    Without it: torchrun stops with a bare `AssertionError`, 5 seconds after the start.
    Why: num_processes counts the ranks on all machines, not on each.
    Instead: set it to machines × GPUs per machine.
    Source: seen with accelerate 1.15, 2 machines and 1 process
    """
    world, machines = plan.machine.num_processes, plan.machine.num_machines
    if world < machines:
        yield violation(
            "machine.num_processes is {num_processes} for {num_machines} machines; it must count the ranks of all "
            "machines",
            remedy(
                "set machine.num_processes to {num_machines} or a multiple of it", {"machine.num_processes": machines}
            ),
        )


@rule("TW613", level=Level.HINT, field="machine.main_process_ip")
def machines_know_where_to_meet(plan: Plan) -> Violations:
    """Multiple machines need a rendezvous address, from the plan or from the scheduler.

    Without it: `trainwiz launch` refuses to start if no scheduler provides the address. By hand, each machine waits for
    the others at its own loopback address for 15 minutes: the first reports `Timed out after 901 seconds waiting for
    clients. 1/2 clients joined.`, the others `The client socket has timed out`. `accelerate launch` looks for a host
    called None.
    Why: torchrun uses main_process_ip for the rendezvous; if it is missing, torchrun uses 127.0.0.1. In a job of a
    scheduler, `trainwiz launch` takes the address from the job's variables.
    Instead: outside a job, set it to an address of the first machine that the others can reach (run `hostname -I`
    there).
    Source: seen with torchrun 2.13 and accelerate 1.15 on two hosts; huggingface/accelerate issues 1239, 2818
    """
    # The job of the plan's scheduler will know it.
    if plan.machine.num_machines > 1 and plan.machine.main_process_ip is None and schedulers.of(plan) is None:
        fix = remedy(
            "keep it if a scheduler starts the machines; otherwise set machine.main_process_ip to an address of "
            "the first machine (run hostname -I there)"
        )
        yield violation("machine.num_machines is {num_machines}, but machine.main_process_ip is not set", fix)


@rule("TW614", level=Level.ERROR, field="machine.main_process_ip")
def meeting_place_is_no_loopback(plan: Plan) -> Violations:
    """The rendezvous address of multiple machines must not be a loopback address.

    Without it: each machine connects to itself, and waits 15 minutes for the others.
    Why: 127.0.0.1, ::1 and localhost refer to the local machine on each machine.
    Instead: set an address of the first machine that the others can reach (run `hostname -I` there).
    Source: seen with torchrun 2.13; https://www.rfc-editor.org/rfc/rfc6890
    """
    address = plan.machine.main_process_ip
    if plan.machine.num_machines > 1 and address is not None and _is_loopback(address):
        yield violation(
            "machine.main_process_ip {main_process_ip} is a loopback address: each of the {num_machines} machines "
            "would connect to itself",
            remedy("set machine.main_process_ip to an address of the first machine (run hostname -I there)"),
        )


@rule("TW615", level=Level.ERROR, field="machine.main_process_port")
def machines_agree_on_a_port(plan: Plan) -> Violations:
    """Multiple machines need a fixed rendezvous port.

    Without it: the first machine opens a random port, and the others connect to port 0: the rendezvous fails, even
    on one machine.
    Why: port 0 means "any free port", and only one machine knows which port that is.
    Instead: set a port that is open between the machines, usually 29500.
    Source: seen with torchrun 2.13
    """
    if plan.machine.num_machines > 1 and plan.machine.main_process_port == 0:
        fix = setting("machine.main_process_port", 29500)
        yield violation("machine.main_process_port is 0, but there are {num_machines} machines", fix)


@rule("TW616", level=Level.ERROR, field="machine.main_process_port")
def meeting_port_is_free(plan: Plan, machine: Machine, project: Project) -> Violations:
    """The rendezvous port must be free on the machine that hosts the rendezvous.

    Without it: that machine fails with `EADDRINUSE` (`accelerate launch` raises a ConnectionError). The others
    connect to the process that listens there, and wait forever for its answer: torchrun's 15 minutes do not apply.
    Why: another process already listens on the port, often the ranks of a run that was killed.
    Instead: use another port, the same on all machines; or end the process that listens (`ss -ltnp`).
    Source: seen with torchrun 2.13; `prepare_multi_gpu_env` in accelerate 1.15
    """
    port = project.port_in_use
    if plan.machine.num_machines > 1 and port is not None and machine.probed and _is_here(plan, machine):
        yield violation(
            "port {port}, the rendezvous port of the {num_machines} machines, is in use on this machine",
            remedy(
                "set machine.main_process_port to {other}, or end the program that uses the port (ss -ltnp)",
                {"machine.main_process_port": port + 1},
                other=port + 1,
            ),
            port=port,
        )


@rule("TW617", level=Level.HINT, field="machine.main_process_port")
def port_is_free(plan: Plan, machine: Machine, project: Project) -> Violations:
    """On a single machine, the planned port should be free.

    Without it: `trainwiz launch` selects another port automatically. If you launch by hand, torchrun may stop with
    `EADDRINUSE`, or two trainings may use the same port, and one of them waits forever.
    Why: another process already listens on the port: another training, or the ranks of a run that was killed.
    Instead: set machine.main_process_port 0 (any free port), or end the process that listens (`ss -ltnp`).
    Source: https://pytorch.org/docs/stable/elastic/run.html
    """
    port = project.port_in_use
    if plan.machine.num_machines == 1 and plan.machine.num_processes > 1 and port is not None and machine.probed:
        yield violation(
            "port {port} is in use on this machine; trainwiz launch will use another one",
            remedy(
                "when starting by hand, use another port: machine.main_process_port {other}",
                {"machine.main_process_port": port + 1},
                other=port + 1,
            ),
            port=port,
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


@rule("TW618", level=Level.WARNING, field="machine.numa_binding")
def only_ranks_with_gpus_are_bound(plan: Plan) -> Violations:
    """machine.numa_binding set to always needs ranks with GPUs.

    Without it: the key has no effect: the ranks run on any core.
    Why: a rank is bound to the NUMA node of its GPU, and a rank on the CPU has none.
    Instead: leave it at auto. To bind CPU ranks, start them with a scheduler that supports it: `srun --cpu-bind=cores`.
    Source: the generated numa.py
    """
    if plan.machine.numa_binding == "always" and plan.machine.device != "cuda":
        yield violation(
            "machine.numa_binding is always, but on {device} no rank has a GPU to be bound to",
            setting("machine.numa_binding", "auto"),
            device=plan.machine.device,
        )
