"""`trainwiz replay`: the command line."""

from __future__ import annotations

from trainwiz.cli.options import Command, taking
from trainwiz.workflows.replay.request import Request

__all__ = ["Command", "replay"]


@taking(Request)
def replay(request: Request) -> int:
    """Repeat it in the project, or rebuilt beside it if plan or code changed; exit 1 if the curves part."""
    from trainwiz.workflows.replay import replay

    return replay.replay(request)
