"""Pods that are counted by RANK and WORLD_SIZE, and machines by NODE_RANK, where nothing else says where they stand.

PyTorchJob before Kubeflow's training-operator 1.6 and Alibaba Cloud's PAI-DLC set the first two in each pod:
https://www.alibabacloud.com/help/en/pai/general-environment-variables; Azure Machine Learning and many job scripts
set NODE_RANK: https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "RANK"
ORDER = 3
"""After schedulers: within their jobs, people export RANK and WORLD_SIZE as counts of processes."""
_OF_PROCESSES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_JOB_ID", "PET_NNODES")
"""Where one of these is set, RANK and WORLD_SIZE count processes, or another target knows better."""


def known(environ: Mapping[str, str]) -> Known:
    """The machine's rank, and the number of pods; the address and port are those that `by_hand` reads."""
    rank, pods = _counted(environ)
    by_name = number(environ.get("NODE_RANK"))
    return Known(machine_rank=rank if by_name is None else by_name, machines=pods)


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of pods than planned, in a pod of Kubernetes; elsewhere the variables may be left over."""
    _, pods = _counted(environ)
    if pods is None or pods == machines or job(environ) is None:
        return None
    return Refused(
        say("pods of the job, by WORLD_SIZE: {given}, but machines of the plan: {n}", given=pods, n=machines),
        say("start {n} pods, or change machine.num_machines; if WORLD_SIZE counts processes, unset it", n=machines),
    )


def job(environ: Mapping[str, str]) -> Job | None:
    """A pod's part of a training; its operator starts it again where its restart policy says so."""
    if _counted(environ)[0] is None or not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return Job(scheduler="Kubernetes", name=environ["MASTER_ADDR"])


def _counted(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The pod's rank and the number of pods; None, None where they are not counted."""
    rank, size = number(environ.get("RANK")), number(environ.get("WORLD_SIZE"))
    if rank is None or size is None or rank >= size or not environ.get("MASTER_ADDR"):
        return None, None
    return (None, None) if any(environ.get(name) for name in _OF_PROCESSES) else (rank, size)
