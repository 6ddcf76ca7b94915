"""Slurm, by the variables that srun sets for each task: https://slurm.schedmd.com/srun.html (output environment)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainwiz.cluster.types import Known, number
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


def _host(environ: Mapping[str, str]) -> str | None:
    """The first host of a node list (`node[03-05,9],x` → node03): machine 0 runs there."""
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    match = re.match(r"(?P<stem>[^\[,]+)(?:\[(?P<first>\d+))?", listed)
    return f"{match['stem']}{match['first'] or ''}" if match else None
