"""Slurm, by the variables that srun sets for each task: https://slurm.schedmd.com/srun.html (output environment)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "SLURM_"
ORDER = 2
_MPIRUN = "OMPI_COMM_WORLD_RANK"
"""mpirun starts its daemons in a step of its own, which has other nodes than the job."""


def known(environ: Mapping[str, str]) -> Known:
    """The node's rank, the number of nodes, and the first host of the node list: of the step, where this is one.

    Outside of a step, as in the batch script itself, a node's rank says nothing: nothing was started on the others.
    """
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES")
    hosts, rank = environ.get("SLURM_JOB_NODELIST"), None
    if _is_step(environ):
        nodes = environ.get("SLURM_STEP_NUM_NODES") or nodes
        hosts, rank = environ.get("SLURM_STEP_NODELIST") or hosts, number(environ.get("SLURM_NODEID"))
    return Known(machine_rank=rank, machines=number(nodes), address=first_host(hosts or "") or None)


def _is_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process, and not a batch script or mpirun."""
    return "SLURM_STEP_ID" in environ and _MPIRUN not in environ


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of nodes than planned, or several tasks on a node."""
    if "SLURM_JOB_ID" not in environ:
        return None
    given = known(environ).machines
    if given is not None and given != machines:
        return Refused(
            say("nodes of the Slurm step: {given}, but machines of the plan: {n}", given=given, n=machines)
            if _is_step(environ)
            else say("nodes of the Slurm job: {given}, but machines of the plan: {n}", given=given, n=machines),
            say(
                "run: srun --nodes={n} --ntasks-per-node=1 in a job with {n} nodes, or change machine.num_machines",
                n=machines,
            ),
        )
    if _is_step(environ) and _tasks_on_a_node(environ) > 1:
        return Refused(
            say("Slurm started several trainwiz processes on this node, but each one starts all ranks of its machine"),
            say("run: srun --ntasks-per-node=1"),
        )
    return None


def _tasks_on_a_node(environ: Mapping[str, str]) -> int:
    """The most of `2(x3),1`: tasks on each of three nodes, and on another one."""
    listed = re.sub(r"\(x\d+\)", "", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    here = number(environ.get("SLURM_LOCALID")) or 0
    return max((int(count) for count in listed.split(",") if count.isdecimal()), default=here + 1)


def job(environ: Mapping[str, str]) -> Job | None:
    """The job, which is queued again only where somebody asks for it."""
    name = environ.get("SLURM_JOB_ID")
    if not name:
        return None
    return Job(
        scheduler="Slurm",
        name=name,
        restarts=number(environ.get("SLURM_RESTART_COUNT")) or 0,
        queues_again=False,
    )


def first_host(listed: str) -> str:
    """The first name of a node list: each bracket stands for its first number, so `rack[1-2]n[03-05,9],x` is rack1n03.

    Source: https://slurm.schedmd.com/scontrol.html (hostnames)
    """
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", listed)
    return first.partition(",")[0].strip()
