"""torchrun's own options as variables, which Kubeflow sets in each pod of a training.

Sources: https://docs.pytorch.org/docs/stable/elastic/run.html;
https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch/
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "PET_"
ORDER = 2


def known(environ: Mapping[str, str]) -> Known:
    """What torchrun would take as its options; a range of machines (2:4) is none."""
    return Known(
        machine_rank=number(environ.get("PET_NODE_RANK")),
        machines=number(environ.get("PET_NNODES")),
        address=environ.get("PET_MASTER_ADDR"),
        port=number(environ.get("PET_MASTER_PORT")),
        ranks_per_machine=number(environ.get("PET_NPROC_PER_NODE")),
    )


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Another number of pods than planned."""
    given = known(environ).machines
    if given is None or given == machines:
        return None
    return Refused(
        say("PET_NNODES: {given}, but machines of the plan: {n}", given=given, n=machines),
        say("set numNodes: {n} of the TrainJob's trainer, or change machine.num_machines", n=machines),
    )


def job(environ: Mapping[str, str]) -> Job | None:
    """A pod's part of a training; Kubernetes starts pods again by itself."""
    if number(environ.get("PET_NODE_RANK")) is None:
        return None
    return Job(scheduler="Kubernetes", name=environ.get("PET_MASTER_ADDR", ""))
