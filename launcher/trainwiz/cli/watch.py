"""`trainwiz watch`: a run on one screen, while it goes on."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainwiz.language import t

if TYPE_CHECKING:
    from trainwiz.store.runs import Run
    from trainwiz.ui.watch import View

_EVERY_SECONDS = 1.0
_SNAPSHOT = (80, 24)
_TAIL_BYTES = 1 << 15
_COMPLAINTS = 3
_QUIT = ("q", "Q", "\x1b")


def watch(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("The project (default: here).")),
    run: str = typer.Option("latest", "--run", metavar="RUN", help=t("Which run (default: the newest).")),
) -> None:
    """Live on a terminal until the run ends or q is pressed; without one, a snapshot."""
    from trainwiz.record.run import State
    from trainwiz.store import history
    from trainwiz.ui import console, fullscreen
    from trainwiz.ui.watch import frame

    found = Watched(history.find(run, Path(folder)))
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
        from trainwiz.record import metrics
        from trainwiz.record.pace import Pace
        from trainwiz.record.run import started
        from trainwiz.store import history
        from trainwiz.store.growing import Growing

        *earlier, now = history.lineage(run)
        self._run = run
        self._earlier = [each.records for each in earlier]
        self._growing = Growing(run.metrics)
        updates = metrics.series(now.records, "update").values
        began = started(now)
        passed = max(updates) - min(updates) + 1 if updates else 0
        spent = now.touched - began if now.touched is not None and began is not None else 0.0
        self._pace = Pace(spent / passed if passed and spent > 0 else None)

    def view(self) -> View:
        """What is known now."""
        from trainwiz.record import metrics
        from trainwiz.record.complaints import complaints
        from trainwiz.record.run import State, summary
        from trainwiz.store import history
        from trainwiz.ui.watch import View

        self._growing.refresh()
        now = time.time()
        recorded = dataclasses.replace(history.without_metrics(self._run), records=self._growing.records)
        line = summary(recorded, now)
        if line.updates is not None:
            self._pace.saw(now, line.updates)
        running = line.state is State.RUNNING
        tails = {rank: history.tail(log, _TAIL_BYTES) for rank, log in history.logs(self._run).items()}
        return View(
            summary=line,
            records=metrics.joined([*self._earlier, self._growing.records]),
            seconds_left=self._pace.left(line.total, now) if running and line.total else None,
            memory=self._memory(recorded.command.get("pid")) if running else {},
            complaints=complaints(tails, _COMPLAINTS),
        )

    def _memory(self, launcher: object) -> dict[int, tuple[int, int | None]]:
        from trainwiz.probe import ranks

        if not isinstance(launcher, int):
            return {}
        return {rank: (held.host, held.gpu) for rank, held in ranks.memory(launcher).items()}
