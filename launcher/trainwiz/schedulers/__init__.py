"""Where a plan can be submitted: each scheduler's file, its commands, and what it says about a job.

Each scheduler is one module, found by folder: one with a `SCHEDULER` is one.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainwiz.schedulers.scheduler import Argv, Job, Phase, Scheduler, Seen

if TYPE_CHECKING:
    from trainwiz.plan import Plan

__all__ = ["Argv", "Job", "Phase", "Scheduler", "Seen", "around", "every", "named", "of"]


@functools.cache
def every() -> tuple[Scheduler, ...]:
    """All schedulers, in the order in which the wizard offers them."""
    modules = pkgutil.iter_modules(__path__, f"{__name__}.")
    found = [getattr(importlib.import_module(m.name), "SCHEDULER", None) for m in modules]
    return tuple(sorted((each for each in found if each), key=lambda each: each.order))


def named(name: str) -> Scheduler | None:
    """The scheduler of that name; None for any other word."""
    return next((each for each in every() if each.name == name), None)


def of(plan: Plan) -> Scheduler | None:
    """The scheduler of a plan; None where people start its machines."""
    return named(plan.cluster.kind)


def around(environ: Mapping[str, str]) -> Job | None:
    """The job that a process with this environment runs in."""
    return next((job for each in every() if (job := each.around(environ))), None)
