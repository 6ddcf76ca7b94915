"""Slurm, by the variables that srun sets for each task: https://slurm.schedmd.com/srun.html (output environment)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "SLURM_"
ORDER = 2


def known(environ: Mapping[str, str]) -> Known:
    """The node's rank, the number of nodes, and the first host of the node list."""
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES")
    return Known(machine_rank=number(environ.get("SLURM_NODEID")), machines=number(nodes), address=_host(environ))


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of nodes than planned, or several tasks on a node."""
    if "SLURM_JOB_ID" not in environ:
        return None
    given = known(environ).machines
    if given is not None and given != machines:
        return Refused(
            say("nodes of the Slurm job: {given}, but machines of the plan: {n}", given=given, n=machines),
            say("run: sbatch --nodes={n}, or change machine.num_machines", n=machines),
        )
    if environ.get("SLURM_LOCALID", "0") != "0":
        return Refused(
            say("Slurm started several trainwiz processes on this node, but each one starts all ranks of its machine"),
            say("run: srun --ntasks-per-node=1"),
        )
    return None


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


def _host(environ: Mapping[str, str]) -> str | None:
    """The first host of a node list: machine 0 runs there."""
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return first_host(listed) or None


def first_host(listed: str) -> str:
    """The first name of a node list: each bracket stands for its first number, so `rack[1-2]n[03-05,9],x` is rack1n03.

    Source: https://slurm.schedmd.com/scontrol.html (hostnames)
    """
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", listed)
    return first.partition(",")[0].strip()
