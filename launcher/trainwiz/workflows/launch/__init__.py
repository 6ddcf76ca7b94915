"""Running a project or a script: preflight, start, supervision, restarts, records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz.errors import Ended

if TYPE_CHECKING:
    from trainwiz.workflows.launch.request import Request


def launch(request: Request) -> int:
    """Launch what the request names; return the training's exit code. Raises `UsageError` for contradictions."""
    # Each imports what it needs, and a launch waits for it: a project needs none of what reads configurations or
    # failures.
    from trainwiz.process import early_signals
    from trainwiz.workflows.launch import usage

    if request.hosts:
        from trainwiz.workflows.launch import hosts

        return hosts.launch(request)
    request = usage.resolved(request)
    try:
        with early_signals.raised():
            return _launch(_with_orders(request))
    except Ended as ended:
        from trainwiz.workflows.launch import requeue

        return requeue.before_start(request, ended)


def _with_orders(request: Request) -> Request:
    """The request with the secret from the launch that started this one, if one did."""
    import dataclasses

    from trainwiz.process import orders

    return dataclasses.replace(request, secret=orders.heard()) if orders.expected() else request


def _launch(request: Request) -> int:
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
