"""Programs on the search path, and the schedulers that are set up here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping

from trainwiz import schedulers
from trainwiz.schedulers import Scheduler


def installed(names: Iterable[str]) -> frozenset[str]:
    """Those of these programs that are installed."""
    return frozenset(name for name in names if shutil.which(name))


def at_hand(environ: Mapping[str, str]) -> tuple[Scheduler, ...]:
    """The schedulers that jobs can be submitted to from here."""
    return tuple(each for each in schedulers.every() if installed([each.program]) and _is_set_up(each, environ))


def _is_set_up(scheduler: Scheduler, environ: Mapping[str, str]) -> bool:
    variables = [trace[1:] for trace in scheduler.traces if trace.startswith("$")]
    files = [trace for trace in scheduler.traces if not trace.startswith("$")]
    there = [*map(environ.get, variables), *(os.path.exists(os.path.expanduser(file)) for file in files)]
    return any(there) or not scheduler.traces
