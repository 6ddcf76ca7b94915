"""torchrun's own variables (torch.distributed's contract), as people and job scripts export them."""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known
from trainwiz.errors import Refused

PREFIX = "MASTER_"
ORDER = 1


def known(environ: Mapping[str, str]) -> Known:
    """The address of machine 0.

    Ranks and sizes are left alone: RANK and WORLD_SIZE count processes, which trainwiz starts itself, and the port is
    the plan's, because the roll-call compares plans.
    """
    return Known(address=environ.get("MASTER_ADDR"))


def contradiction(_environ: Mapping[str, str], _machines: int) -> Refused | None:
    """Nothing here contradicts a plan."""
    return None


def job(_environ: Mapping[str, str]) -> Job | None:
    """None: these variables stand for no job."""
    return None
