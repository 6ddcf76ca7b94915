"""`trainwiz submit`: the command line."""

from __future__ import annotations

from trainwiz.cli.options import taking
from trainwiz.workflows.jobs.request import Request


@taking(Request)
def submit(request: Request) -> int:
    """Check the project, and submit its job to the scheduler that the plan names."""
    from trainwiz.workflows.jobs import submit

    return submit.submit(request)
