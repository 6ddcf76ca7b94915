"""Who starts the machines, and what is requested for them. Only the user knows the names in their cluster."""

from __future__ import annotations

from trainwiz.decide.decision import Decision
from trainwiz.message import say

_USUAL = say("the scheduler's own default")
_REASONS = {
    "kind": say("people start it themselves"),
    "job_name": say("only people read it"),
    "time_limit": _USUAL,
    "grace": say("long enough for most checkpoints"),
    "requeue": say("a stopped job then continues automatically"),
    "gpu_type": say("any type"),
    "cpus": _USUAL,
    "memory": _USUAL,
    "setup": say("the job inherits the environment that it is submitted from"),
    "folder": say("the folder it is submitted from; /project in containers"),
    "partition": _USUAL,
    "account": _USUAL,
    "qos": _USUAL,
    "queue": say("only clusters with Kueue have queues"),
    "namespace": say("the one that kubectl is set to"),
    "image": say("only you know which image has your packages"),
    "volume": say("only you know its name"),
    "shared_memory": say("containers have 64 MiB otherwise"),
    "workload": say("starts and restarts all machines together"),
    "infra": say("the cheapest cloud with credentials"),
    "spot": say("a spot machine can be taken away at any time"),
}


def decide_cluster(d: Decision) -> None:
    """Nothing here depends on the machine: a login node is not where it will run."""
    for name, reason in _REASONS.items():
        d.settle_default(f"cluster.{name}", reason)
