"""Kubeflow's PyTorchJob and TrainJob."""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.job import count
from trainwiz.config.tools.kubeflow import containers
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule

_REPLICAS = "spec.pytorchReplicaSpecs"
_ROLES = ("Master", "Worker")


@rule("TW921", level=Level.WARNING, field=_REPLICAS)
def workers_have_shared_memory(tool_file: ToolFile) -> Violations:
    """A container that trains on GPUs needs a memory volume at /dev/shm.

    Without it: data loaders stop with `Bus error … insufficient shared memory (shm)`, and NCCL with `unhandled system
    error`.
    Why: Kubernetes gives a container 64 MB of shared memory.
    Instead: add a volume `emptyDir: {medium: Memory}` and mount it at /dev/shm.
    Source: https://docs.pytorch.org/docs/stable/notes/multiprocessing.html; Docker's default --shm-size
    """
    for role in _ROLES:
        for container in containers(tool_file.document, role):
            mounts = container.get("volumeMounts")
            paths = [m.get("mountPath") for m in mounts if isinstance(m, Mapping)] if isinstance(mounts, list) else []
            if _gpus(container, "limits") and "/dev/shm" not in paths and not tool_file.get(_spec(role, "hostIPC")):
                yield violation(
                    "{role} trains on GPUs with 64 MB of shared memory",
                    remedy("mount a volume of medium Memory at /dev/shm"),
                    where=_spec(role, "containers"),
                    role=role,
                )


@rule("TW922", level=Level.ERROR, field=_REPLICAS)
def a_job_has_one_master_named_pytorch(tool_file: ToolFile) -> Violations:
    """A PyTorchJob needs one Master, and a container named pytorch in each role.

    Without it: the job is rejected: `Master.replicas must be 1`, or `There is no container named pytorch`.
    Why: the operator passes the addresses of the others to this container.
    Instead: set replicas: 1 for the Master; name the container pytorch.
    Source: https://github.com/kubeflow/training-operator (v1.9, PyTorchJob's webhook)
    """
    masters = tool_file.get(f"{_REPLICAS}.Master.replicas", 1)
    if count(masters) not in (None, 1):
        yield violation(
            "{n} Masters; a PyTorchJob has one",
            remedy("set replicas: 1, and more Workers"),
            where=f"{_REPLICAS}.Master.replicas",
            n=masters,
        )
    for role in _ROLES:
        names = [container.get("name") for container in containers(tool_file.document, role)]
        if names and "pytorch" not in names:
            yield violation(
                "no container of {role} has the name pytorch",
                remedy("set name: pytorch"),
                where=_spec(role, "containers"),
                role=role,
            )


@rule("TW923", level=Level.ERROR, field=_REPLICAS)
def gpus_are_limits(tool_file: ToolFile) -> Violations:
    """Request GPUs in limits; requests must be equal or omitted.

    Without it: Kubernetes rejects the pod: `must be equal to nvidia.com/gpu limit`, or `Limit must be set for non
    overcommitable resources`.
    Why: a GPU cannot be shared beyond its limit.
    Instead: set nvidia.com/gpu in limits.
    Source: https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/
    """
    for role in _ROLES:
        for container in containers(tool_file.document, role):
            asked, limit = _gpus(container, "requests"), _gpus(container, "limits")
            if asked and asked != limit:
                yield violation(
                    "{role} requests {asked} GPUs with a limit of {limit}",
                    remedy("set both to the same number"),
                    where=_spec(role, "containers"),
                    role=role,
                    asked=asked,
                    limit=limit or 0,
                )


def _spec(role: str, key: str) -> str:
    return f"{_REPLICAS}.{role}.template.spec.{key}"


def _gpus(container: Mapping[str, object], kind: str) -> int | None:
    resources = container.get("resources")
    block = resources.get(kind) if isinstance(resources, Mapping) else None
    return count(block.get("nvidia.com/gpu")) if isinstance(block, Mapping) else None
