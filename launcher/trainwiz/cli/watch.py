"""`trainwiz watch`: a run on one screen, while it goes on."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trainwiz.language import t

if TYPE_CHECKING:
    from trainwiz.record.pace import Pace
    from trainwiz.record.run import Recorded, Summary
    from trainwiz.store.runs import Run
    from trainwiz.ui.watch import View

_EVERY_SECONDS = 1.0
_SNAPSHOT = (80, 24)
_TAIL_BYTES = 1 << 15
_COMPLAINTS = 3
_RECORDS = 4000
"""More than any terminal has columns; a long run's file holds hundreds of thousands."""
_REST = 20
"""Looking at the memory may take one part in so many of the time."""
_QUIT = ("q", "Q", "\x1b")


def watch(
    target: str = typer.Argument(
        "latest", metavar="[RUN]", help=t("A run's name or folder, or a project's folder (default: the newest here).")
    ),
    run: str = typer.Option("", "--run", metavar="RUN", help=t("Which run (default: the newest).")),
) -> None:
    """Live on a terminal until the run ends or q is pressed; without one, a snapshot."""
    from trainwiz.record.run import State
    from trainwiz.store import history
    from trainwiz.ui import console, fullscreen
    from trainwiz.ui.watch import frame

    found = Watched(history.find(run, Path(target)) if run else history.find(target))
    view = found.view()
    if fullscreen.available() and view.summary.state is State.RUNNING:
        if _live(found):
            return
        view = found.view()
    size = tuple(shutil.get_terminal_size(_SNAPSHOT)) if fullscreen.available() else _SNAPSHOT
    for line in frame(view, *size):
        console.data(line)


def _live(found: Watched) -> bool:
    """Draw until the run ends (False) or the person has seen enough (True)."""
    from trainwiz.record.run import State
    from trainwiz.ui import fullscreen
    from trainwiz.ui.watch import frame

    try:
        with fullscreen.taken():
            while (view := found.view()).summary.state is State.RUNNING:
                # One line less than there are: nothing must ever scroll.
                width, height = shutil.get_terminal_size()
                fullscreen.draw(frame(dataclasses.replace(view, live=True), width, height - 1))
                if fullscreen.pressed(_EVERY_SECONDS) in _QUIT:
                    return True
    except KeyboardInterrupt:
        return True
    return False


class Watched:
    """A run and those that it continues, read again and again without reading all of it again."""

    def __init__(self, run: Run) -> None:
        from trainwiz.store import history
        from trainwiz.store.jsonl import JsonLines

        self._run = run
        self._earlier = [each.records for each in history.earlier(run)]
        self._metrics, self._samples = JsonLines(run.metrics), JsonLines(run.memory)
        self._records: list[dict[str, Any]] = []
        self._held_before: list[dict[str, Any]] = []
        self._lowest: float | None = None
        self._pace: Pace | None = None
        self._memory: dict[int, tuple[int, int | None]] = {}
        self._memory_due = 0.0

    def view(self) -> View:
        """What is known now."""
        from trainwiz.record import memory, metrics
        from trainwiz.record.complaints import complaints
        from trainwiz.record.run import State, summary
        from trainwiz.store import history
        from trainwiz.ui.watch import View

        self._take_in()
        now = time.time()
        records = metrics.sampled(self._records, _RECORDS)
        recorded = dataclasses.replace(history.without_metrics(self._run), records=records)
        line = summary(recorded, now)
        running = line.state is State.RUNNING
        tails = {rank: history.tail(log, _TAIL_BYTES) for rank, log in history.logs(self._run).items()}
        return View(
            summary=line,
            records=metrics.joined([*(metrics.sampled(part, _RECORDS) for part in self._earlier), records]),
            lowest_loss=self._lowest,
            seconds_left=self._left(recorded, line, now) if running else None,
            memory=self._held(recorded.command.get("pid")) if running else {},
            most=memory.most(self._held_before) if running else {},
            complaints=complaints(tails, _COMPLAINTS),
        )

    def _take_in(self) -> None:
        from trainwiz.record import metrics

        new = self._metrics.new()
        if self._metrics.rewritten:
            self._records, self._lowest = [], None
        self._records += new
        self._held_before += self._samples.new()
        losses = metrics.series(new, "loss").values
        self._lowest = min([*losses, *([] if self._lowest is None else [self._lowest])], default=None)

    def _left(self, run: Recorded, line: Summary, now: float) -> float | None:
        from trainwiz.record.pace import Pace
        from trainwiz.record.run import started

        if line.updates is None or not line.total:
            return None
        if self._pace is None:
            # What nobody watched: the run's own start-up is in it, until updates are seen to pass.
            first = self._records[0].get("update")
            passed = line.updates - first + 1 if isinstance(first, int) else 0
            began = started(run)
            spent = run.touched - began if run.touched is not None and began is not None else 0.0
            self._pace = Pace(spent / passed if passed > 0 and spent > 0 else None)
        self._pace.saw(now, line.updates)
        return self._pace.left(line.total, now)

    def _held(self, launcher: object) -> dict[int, tuple[int, int | None]]:
        from trainwiz.probe import ranks

        began = time.monotonic()
        if isinstance(launcher, int) and began >= self._memory_due:
            self._memory = {rank: (held.host, held.gpu) for rank, held in ranks.memory(launcher).items()}
            # Some drivers take seconds to answer: whoever watches must not slow the training down.
            self._memory_due = time.monotonic() + _REST * (time.monotonic() - began)
        return self._memory
