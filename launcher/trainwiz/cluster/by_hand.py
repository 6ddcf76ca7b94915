"""Variables of torch.distributed's contract, as people and job scripts export them.

PyTorchJob, Volcano's pytorch plugin and Alibaba's PAI-DLC set them in each pod, where RANK and WORLD_SIZE count pods.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused

PREFIX = "MASTER_"
ORDER = 1


def known(environ: Mapping[str, str]) -> Known:
    """The address and port of machine 0.

    What RANK and WORLD_SIZE count depends on who sets them: see `pods`.
    """
    return Known(address=_address(environ), port=number(environ.get("MASTER_PORT")))


def contradiction(_environ: Mapping[str, str], _machines: int) -> Refused | None:
    """Nothing: these variables never contradict a plan."""
    return None


def job(_environ: Mapping[str, str]) -> Job | None:
    """None: these variables do not belong to a job."""
    return None


def _address(environ: Mapping[str, str]) -> str | None:
    """What MASTER_ADDR says; the pod's own name where an operator before Kubeflow's 1.6 calls the master localhost."""
    address = environ.get("MASTER_ADDR")
    in_pod = environ.get("KUBERNETES_SERVICE_HOST") and environ.get("RANK") == "0" and environ.get("WORLD_SIZE") != "1"
    if in_pod and address in ("localhost", "127.0.0.1"):
        # There, listening on loopback alone would keep the other pods out.
        return environ.get("HOSTNAME") or address
    return address
