"""Launching over several machines: which one this is, where machine 0 is, and the roll-call before the start."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwiz.errors import Refused, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.command import Command
    from trainwiz.plan import Plan
    from trainwiz.store.runs import Run


@dataclass(frozen=True, kw_only=True)
class Place:
    """This machine's rank among those of the plan, and machine 0's address and port."""

    rank: int
    address: str
    port: int


def place(plan: Plan, machine_rank: int | None, environ: Mapping[str, str] = os.environ) -> Place:
    """Where this machine stands: from `--machine-rank`, else Slurm's variables.

    Raises `UsageError` where that is unknown, `Refused` where Slurm's allocation is not what was planned.
    """
    machines = plan.machine.num_machines
    if "SLURM_JOB_ID" in environ:
        _check_slurm(machines, environ)
    rank = machine_rank if machine_rank is not None else _slurm_rank(environ)
    if rank is None:
        raise UsageError(
            say("the plan has {n} machines, and which one this is was not said", n=machines),
            say("add --machine-rank 0 on the first, --machine-rank 1 on the next; under srun it is known"),
        )
    if not 0 <= rank < machines:
        raise UsageError(say("--machine-rank {rank}: the plan has machines 0 to {last}", rank=rank, last=machines - 1))
    address = plan.machine.main_process_ip or known_address(environ)
    if not address:
        raise UsageError(
            say("the plan has {n} machines, but no address of machine 0", n=machines),
            say("set machine.main_process_ip in trainwiz.yaml to an address that the others reach"),
        )
    if not plan.machine.main_process_port:
        raise UsageError(say("machine.main_process_port is 0; over several machines they must all know one port"))
    return Place(rank=rank, address=address, port=plan.machine.main_process_port)


def known_address(environ: Mapping[str, str] = os.environ) -> str | None:
    """The address of machine 0 as the environment has it: MASTER_ADDR, else Slurm's first host."""
    return environ.get("MASTER_ADDR") or first_host(environ)


def first_host(environ: Mapping[str, str]) -> str | None:
    """The first host of Slurm's node list (`node[03-05,9],x` → node03), where machine 0 runs; None outside Slurm."""
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    match = re.match(r"(?P<stem>[^\[,]+)(?:\[(?P<first>\d+))?", listed)
    return f"{match['stem']}{match['first'] or ''}" if match else None


def call_roll(
    place: Place, plan: Plan, project: Path, *, wait: float, continues: Run | None
) -> tuple[Run, Run | None, Mapping[str, str]]:
    """Hold or attend the roll-call. Returns the run that machine 0 named, the one that it continues, and what to add
    to the environment."""
    from trainwiz.network import ports, rollcall
    from trainwiz.store import runs

    me = rollcall.Machine(
        rank=place.rank, hostname=os.uname().nodename, plan=plan.digest(), machines=plan.machine.num_machines
    )
    console.talk(
        t(
            "machine {rank} of {n}: roll-call at {address}:{port}, for up to {wait:g} s",
            rank=place.rank,
            n=plan.machine.num_machines,
            address=place.address,
            port=place.port,
            wait=wait,
        )
    )
    if place.rank == 0:
        agreed = {"run": runs.next_name(project), "continues": continues.name if continues else ""}
        roll = rollcall.host(me, address=place.address, port=place.port, wait=wait, agreed=agreed)
    else:
        roll = rollcall.attend(me, address=place.address, port=place.port, wait=wait)
    for machine in sorted(roll.present, key=lambda m: m.rank):
        console.talk(t("machine {rank}: {host}", rank=machine.rank, host=machine.hostname), style="dim")
    before = runs.named(project, roll.agreed["continues"]) if roll.agreed["continues"] else None
    run = runs.join(project, roll.agreed["run"], machine=place.rank, continues=before)
    return run, before, _interfaces(ports.interface_towards(place.address, place.port))


def completed(command: Command, options: tuple[str, ...], added: Mapping[str, str]) -> Command:
    """torchrun's command with more options and environment."""
    module = command.argv.index("torch.distributed.run") + 1
    return dataclasses.replace(
        command,
        argv=(*command.argv[:module], *options, *command.argv[module:]),
        environ={**command.environ, **added},
    )


def _interfaces(name: str | None) -> dict[str, str]:
    # gloo takes the address that the host name resolves to, which is often the loopback's.
    return {v: name for v in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name and v not in os.environ}


def _slurm_rank(environ: Mapping[str, str]) -> int | None:
    value = environ.get("SLURM_NODEID", "")
    return int(value) if value.isdigit() else None


def _check_slurm(machines: int, environ: Mapping[str, str]) -> None:
    given = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or ""
    if given.isdigit() and int(given) != machines:
        raise Refused(
            say("Slurm's job has {given} node(s), the plan has {n} machine(s)", given=given, n=machines),
            say("sbatch --nodes={n}, or change machine.num_machines", n=machines),
        )
    if environ.get("SLURM_LOCALID", "0") != "0":
        raise Refused(
            say("Slurm started several trainwiz on this node; each starts all ranks of its machine"),
            say("srun --ntasks-per-node=1"),
        )
