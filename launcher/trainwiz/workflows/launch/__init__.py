"""Running a project or a script: preflight, start, supervision, restarts, records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwiz.workflows.launch.request import Request


def launch(request: Request) -> int:
    """Launch what the request names; return the training's exit code. Raises `UsageError` for contradictions."""
    # Each imports what it needs, and a launch waits for it: a project needs none of what reads configurations or
    # failures.
    from trainwiz.workflows.launch import usage

    request = usage.understood(request)
    if request.config:
        from trainwiz.workflows.launch import script

        return script.launch(request)
    if request.apply_fix:
        from trainwiz.workflows.launch import plan_fix

        changed = plan_fix.apply(request)
        if changed is None:
            return 0
        request = changed
    from trainwiz.workflows.launch import project

    return project.launch(request)
