"""`trainwiz update`: the options."""

from __future__ import annotations

from trainwiz.cli.options import taking
from trainwiz.workflows.create.request import UpdateRequest


@taking(UpdateRequest)
def update(request: UpdateRequest) -> int:
    """Your edits of generated files are merged with what changes in them."""
    from trainwiz.workflows.create import update

    return update.update(request)
