"""`trainwiz plan`: what fits, how fast it is, what it costs."""

from __future__ import annotations

from trainwiz.cli.options import taking
from trainwiz.workflows.planning.request import PlanRequest


@taking(PlanRequest)
def plan(request: PlanRequest) -> int:
    """Exit 1 where nothing fits."""
    from trainwiz.workflows.planning import plan

    return plan.plan(request)
