"""Kubeflow's PyTorchJob and TrainJob."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from trainwiz.config.document import Document
from trainwiz.config.tools.job import Job, count, launched
from trainwiz.config.tools.tool import Tool

_REPLICAS = "spec.pytorchReplicaSpecs"


def _recognized(document: Document) -> bool:
    values = document.values
    group = str(values.get("apiVersion", "")).partition("/")[0]
    return values.get("kind") in ("PyTorchJob", "TrainJob") and group in ("kubeflow.org", "trainer.kubeflow.org")


def containers(document: Document, role: str) -> list[Mapping[str, Any]]:
    """The containers of a role of a PyTorchJob."""
    found = document.get(f"{_REPLICAS}.{role}.template.spec.containers")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _job(document: Document) -> Job | None:
    return _of_train_job(document) if document.get("kind") == "TrainJob" else _of_pytorch_job(document)


def _of_train_job(document: Document) -> Job:
    at = "spec.trainer"
    text = _command(document.get(at))
    program, options = launched(text)
    limits = document.get(f"{at}.resourcesPerNode.limits") or document.get(f"{at}.resourcesPerNode.requests")
    return Job(
        machines=count(document.get(f"{at}.numNodes")),
        gpus=_gpus(limits),
        text=text,
        at={"text": f"{at}.command"},
        told=True,  # Kubeflow sets PET_NNODES and the others, which torchrun reads
        program=program,
        options={"nproc_per_node": document.get(f"{at}.numProcPerNode", ""), **options},
    )


def _of_pytorch_job(document: Document) -> Job | None:
    roles = [role for role in ("Worker", "Master") if containers(document, role)]
    if not roles:
        return None
    at = f"{_REPLICAS}.{roles[0]}.template.spec"
    container = containers(document, roles[0])[0]
    text = _command(container)
    program, options = launched(text)
    replicas = [document.get(f"{_REPLICAS}.{role}.replicas", 1) for role in roles]
    whole = all(count(each) for each in replicas)
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return Job(
        machines=sum(count(each) or 0 for each in replicas) if whole else None,
        gpus=_gpus(limits),
        gpu=str(document.get(f"{at}.nodeSelector", "")),
        text=text,
        at={"text": f"{at}.containers", "gpu": f"{at}.nodeSelector"},
        told=True,
        program=program,
        options={"nproc_per_node": document.get("spec.nprocPerNode", ""), **options},
    )


def _command(container: object) -> str:
    told = container if isinstance(container, Mapping) else {}
    words = [word for key in ("command", "args") for word in _listed(told.get(key))]
    # A command given to a shell is one word with commands in it.
    return "\n".join(map(str, words)) if any(" " in str(word) for word in words) else shlex.join(map(str, words))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _gpus(limits: Any) -> int | None:
    return count(limits.get("nvidia.com/gpu")) if isinstance(limits, Mapping) else None


TOOL = Tool(name="Kubeflow", version="1.9", recognized=_recognized, marks="kind: PyTorchJob or TrainJob", job=_job)
