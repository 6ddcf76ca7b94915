"""A job writes its run's records into its output, for schedulers from which only the output can be fetched."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz import schedulers
from trainwiz.record import job_output
from trainwiz.ui import console
from trainwiz.ui.live import Screen
from trainwiz.workflows.launch.prepared import Prepared

_EVERY_SECONDS = 10.0
"""Clusters keep some megabytes of a container's output: at this pace, those of days."""


# docs/decisions/launching.md: A job says in its output what its run records
class JobOutput:
    """What machine 0 says while it trains; nothing outside of such a job."""

    def __init__(self, prepared: Prepared) -> None:
        job = schedulers.around(os.environ)
        scheduler = schedulers.named(job.scheduler) if job else None
        is_first = not (prepared.place and prepared.place.rank)
        self._tells = bool(is_first and job and scheduler and scheduler.output(job, 0, follow=False, since=""))
        self._run = prepared.run
        self._screen: Screen | None = None
        self._said = -_EVERY_SECONDS
        self._left: Mapping[str, Any] | None = None

    def begin(self, screen: Screen, command: Mapping[str, Any]) -> None:
        """The run begins."""
        if self._tells:
            self._screen = screen
            screen.line(job_output.run(self._run.name, command))

    def metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """New records: of updates one in ten seconds, the last one and those before an evaluation; of the rest, all."""
        for record in records if self._screen else ():
            if "loss" not in record:
                self._say_left()  # an evaluation is of the update before it
            self._left = record
            if "loss" not in record or time.monotonic() >= self._said + _EVERY_SECONDS:
                self._say_left()

    def end(self) -> None:
        """The run is over, and its outcome recorded."""
        if self._screen:
            self._say_left()
            with contextlib.suppress(OSError):
                console.data(job_output.outcome(self._run.read("outcome")))

    def _say_left(self) -> None:
        if self._screen and self._left:
            self._screen.line(job_output.metrics(self._left))
            self._left, self._said = None, time.monotonic()
