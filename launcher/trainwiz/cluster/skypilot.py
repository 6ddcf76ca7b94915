"""SkyPilot, by the variables that it sets for a task's `run` commands on each node.

Source: https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "SKYPILOT_"
ORDER = 2


def known(environ: Mapping[str, str]) -> Known:
    """The node's rank, the number of nodes, and the first address of the list, which is in the order of the ranks."""
    addresses = environ.get("SKYPILOT_NODE_IPS", "").split()
    return Known(
        machine_rank=number(environ.get("SKYPILOT_NODE_RANK")),
        # Releases up to 0.5 set no SKYPILOT_NUM_NODES.
        machines=number(environ.get("SKYPILOT_NUM_NODES")) or len(addresses) or None,
        address=addresses[0] if addresses else None,
        ranks_per_machine=number(environ.get("SKYPILOT_NUM_GPUS_PER_NODE")) or None,
    )


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of nodes than planned."""
    given = known(environ).machines
    if given is None or given == machines:
        return None
    return Refused(
        say("nodes of the SkyPilot task: {given}, but machines of the plan: {n}", given=given, n=machines),
        say("set num_nodes: {n} in the task's YAML, or change machine.num_machines", n=machines),
    )


def job(environ: Mapping[str, str]) -> Job | None:
    """A task; the controller of a managed job starts it again by itself."""
    task = environ.get("SKYPILOT_TASK_ID")
    return Job(scheduler="SkyPilot", name=task) if task else None
