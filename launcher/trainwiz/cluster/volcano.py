"""Volcano, by the variables of its `env` and `svc` plugins: an index within a task, and each task's hosts.

Source: https://volcano.sh/en/docs/env_plugin/ and svc_plugin; Huawei's ModelArts sets the same. Its `pytorch` plugin
counts the pods of a master and its workers as RANK and WORLD_SIZE: https://volcano.sh/en/docs/pytorch_on_volcano/
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "VC_"
ORDER = 2
_HOSTS = "_HOSTS"


def known(environ: Mapping[str, str]) -> Known:
    """The pod's index and the hosts of its task, where the job has one task; of several, an index says no rank.

    There the pod's RANK counts, where the pytorch plugin has counted all pods that are listed.
    """
    listed = [
        value.split(",") for name, value in sorted(environ.items()) if name.startswith(PREFIX) and name.endswith(_HOSTS)
    ]
    index = number(environ.get("VC_TASK_INDEX"))
    pods, rank = sum(map(len, listed)), number(environ.get("RANK"))
    if index is not None and len(listed) > 1 and rank is not None and number(environ.get("WORLD_SIZE")) == pods:
        return Known(machine_rank=rank, machines=pods, address=environ.get("MASTER_ADDR") or None)
    if index is None or len(listed) != 1:
        return Known()
    hosts = [host.strip() for host in listed[0] if host.strip()]
    return Known(machine_rank=index, machines=len(hosts) or None, address=hosts[0] if hosts else None)


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of pods than planned."""
    given = known(environ).machines
    if given is None or given == machines:
        return None
    return Refused(
        say("pods of the Volcano task: {given}, but machines of the plan: {n}", given=given, n=machines),
        say("set replicas: {n} of the job's task, or change machine.num_machines", n=machines),
    )


def job(environ: Mapping[str, str]) -> Job | None:
    """A pod of a job, which Volcano restarts by the job's policies."""
    address = known(environ).address
    return Job(scheduler="Volcano", name=address) if address else None
