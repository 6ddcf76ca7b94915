"""`trainwiz rehearse`: the command line."""

from __future__ import annotations

from trainwiz.cli.options import Command, taking
from trainwiz.workflows.rehearse.request import Request

__all__ = ["Command", "rehearse"]


@taking(Request)
def rehearse(request: Request) -> int:
    """Train a small shape of the project on CPU ranks, kill it, resume it, cut it otherwise; exit 1 if it differs."""
    from trainwiz.workflows.rehearse import rehearsal

    return rehearsal.rehearse(request)
