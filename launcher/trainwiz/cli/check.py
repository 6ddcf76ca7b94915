"""`trainwiz check`: the rules alone, on projects, plans, and files that trainwiz did not write."""

from __future__ import annotations

from trainwiz.cli.options import taking
from trainwiz.workflows.check.request import Request


@taking(Request)
def check(request: Request) -> int:
    """Exit 1 on a finding of level error."""
    from trainwiz.workflows.check import check

    return check.check(request)
