"""dstack, by the variables that its runner sets on each node of a task: https://dstack.ai/docs/concepts/tasks/"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "DSTACK_"
ORDER = 2


def known(environ: Mapping[str, str]) -> Known:
    """The node's rank, the number of nodes, their GPUs, and the address of the first."""
    return Known(
        machine_rank=number(environ.get("DSTACK_NODE_RANK")),
        machines=number(environ.get("DSTACK_NODES_NUM")),
        address=environ.get("DSTACK_MASTER_NODE_IP") or None,
        ranks_per_machine=number(environ.get("DSTACK_GPUS_PER_NODE")) or None,
    )


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of nodes than planned."""
    given = known(environ).machines
    if given is None or given == machines:
        return None
    return Refused(
        say("nodes of the dstack task: {given}, but machines of the plan: {n}", given=given, n=machines),
        say("set nodes: {n} in the task's YAML, or change machine.num_machines", n=machines),
    )


def job(environ: Mapping[str, str]) -> Job | None:
    """A run; dstack starts it again by itself where its `retry` says so."""
    name = environ.get("DSTACK_RUN_NAME")
    return Job(scheduler="dstack", name=name) if name else None
