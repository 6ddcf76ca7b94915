"""`trainwiz adopt`: a project from a person's own training script."""

from __future__ import annotations

from trainwiz.cli.options import Command, taking
from trainwiz.workflows.create.request import AdoptRequest

__all__ = ["Command", "adopt"]


@taking(AdoptRequest)
def adopt(request: AdoptRequest) -> None:
    """What cannot be taken over is listed with its line, and marked in task.py; nothing is dropped silently."""
    from trainwiz.workflows.create import import_

    import_.import_(request.as_import)
