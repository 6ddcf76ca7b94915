"""`trainwiz import`: a project from files that trainwiz did not write."""

from __future__ import annotations

from trainwiz.cli.options import Command, taking
from trainwiz.workflows.create.request import ImportRequest

__all__ = ["Command", "import_"]


@taking(ImportRequest)
def import_(request: ImportRequest) -> None:
    """What does not fit a plan is listed with its line; nothing is dropped silently."""
    from trainwiz.workflows.create import import_

    import_.import_(request)
