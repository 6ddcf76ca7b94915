"""`trainwiz init`: ask, check, and write a project."""

from __future__ import annotations

from trainwiz.cli.options import taking
from trainwiz.workflows.create.request import InitRequest


@taking(InitRequest)
def init(request: InitRequest) -> None:
    """Every other key of the plan goes by --set."""
    from trainwiz.workflows.create import init

    init.init(request)
