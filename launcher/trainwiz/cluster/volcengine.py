"""Volcengine's machine learning platform (火山引擎), by the variables of its PyTorch jobs.

Source: https://www.volcengine.com/docs/6459/75329
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "MLP_"
ORDER = 2


def known(environ: Mapping[str, str]) -> Known:
    """The worker's index, the number of workers, their GPUs, and the address and port of the first."""
    is_worker = environ.get("MLP_ROLE", "WORKER").upper() == "WORKER"
    return Known(
        machine_rank=number(environ.get("MLP_ROLE_INDEX")) if is_worker else None,
        machines=number(environ.get("MLP_WORKER_NUM")),
        address=environ.get("MLP_WORKER_0_HOST") or None,
        port=number(environ.get("MLP_WORKER_0_PORT")),
        ranks_per_machine=number(environ.get("MLP_WORKER_GPU")) or None,
    )


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of workers than planned."""
    given = known(environ).machines
    if given is None or given == machines:
        return None
    return Refused(
        say("workers of the Volcengine job: {given}, but machines of the plan: {n}", given=given, n=machines),
        say("set RoleReplicas: {n} of the job's worker, or change machine.num_machines", n=machines),
    )


def job(environ: Mapping[str, str]) -> Job | None:
    """A custom training job, which the platform starts again where its retry policy says so."""
    name = environ.get("MLP_TASK_ID") or environ.get("MLP_WORKER_0_HOST")
    return Job(scheduler="Volcengine", name=name) if name else None
