"""`trainwiz watch`: a run on one screen, while it goes on."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.probe import ranks
from trainwiz.record import memory, metrics
from trainwiz.record.complaints import complaints
from trainwiz.record.pace import Pace
from trainwiz.record.run import Recorded, State, Summary, started, summary
from trainwiz.shell_words import quoted
from trainwiz.store import history, jobs, jsonl
from trainwiz.store.jsonl import JsonLines
from trainwiz.store.runs import Run
from trainwiz.ui import console, fullscreen
from trainwiz.ui.watch import View, frame, to_dict
from trainwiz.workflows.jobs import copy, output

_EVERY_SECONDS = 1.0
_SNAPSHOT = (80, 24)
"""Columns and lines of a snapshot where there is no terminal."""
_PROMPT_LINES = 2
_TAIL_BYTES = 1 << 15
_COMPLAINTS = 3
"""Warnings of the logs that are shown."""
_RECORDS = 4000
"""More than any terminal has columns; a long run's file holds hundreds of thousands."""
_MOST_KEPT = 40_000
"""Records that are kept before they are sampled."""
_REST = 20
"""Reading the ranks' memory may take one part in so many of the time."""
_QUIT = ("q", "Q", "\x1b")


def watch(target: str, run: str | None, *, as_json: bool = False) -> None:
    """Draw a run until it ends or a key of `_QUIT` is pressed; without a terminal, or as JSON, print a snapshot."""
    if elsewhere := output.meant(target, run):
        with copy.of(*elsewhere) as copied:
            _show(Watched(copied.run), copied.renew, as_json=as_json, name=target)
        return
    found = history.find(run, Path(target)) if run else history.find(target)
    _show(Watched(found), lambda: None, as_json=as_json, name=console.near(found.folder))


def _show(watched: Watched, renew: Callable[[], None], *, as_json: bool, name: str | Path) -> None:
    """`name` is what a command calls the run."""
    view = watched.view()
    if as_json:
        console.data_json(to_dict(view, watched.job))
        return
    if fullscreen.available() and view.summary.state is State.RUNNING:
        if _draw_until_the_end(watched, renew):
            return
        view = watched.view()
    width, height = shutil.get_terminal_size(_SNAPSHOT) if fullscreen.available() else _SNAPSHOT
    # The shell's next prompt takes a line or two, and must not push the run's name off the screen.
    hint = t("what to do: trainwiz diagnose {run}", run=quoted(name)) if view.summary.state is State.FAILED else ""
    told = console.fitted(hint, first="", rest="  ", stream=sys.stderr) if hint else []
    for line in frame(view, width, max(1, height - _PROMPT_LINES - len(told))):
        console.data(line)
    for line in told:
        console.talk(line)


def _draw_until_the_end(watched: Watched, renew: Callable[[], None]) -> bool:
    """Whether the person left before the run ended. `renew` is called before each look."""
    try:
        with fullscreen.active():
            while (view := watched.view()).summary.state is State.RUNNING:
                # One line less than there are: nothing must ever scroll.
                width, height = shutil.get_terminal_size()
                fullscreen.draw(frame(dataclasses.replace(view, live=True), width, height - 1))
                if fullscreen.pressed(_EVERY_SECONDS) in _QUIT:
                    return True
                renew()
    except KeyboardInterrupt:
        return True
    return False


class Watched:
    """A run and the runs that it continues. Each `view` reads only what was written since the one before."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._earlier = [each.records for each in history.earlier(run, history.sampled)]
        reader = jsonl.sampled(run.metrics)
        self._metrics, self._samples = (
            reader or JsonLines(run.metrics),
            jsonl.sampled(run.memory) or JsonLines(run.memory),
        )
        self._is_whole = reader is None
        self._records: list[dict[str, Any]] = []
        self._most: dict[int, int] = {}
        self._lowest: float | None = None
        self._pace: Pace | None = None
        self._memory: dict[int, tuple[int, int | None]] = {}
        self._memory_due = 0.0

    @property
    def job(self) -> str | None:
        """The id of the scheduler's job that the run is part of."""
        found = jobs.of_run(self._run)
        return found.id if found else None

    def view(self) -> View:
        """What is known now."""
        self._read()
        now = time.time()
        records = metrics.sampled(self._records, _RECORDS)
        recorded = dataclasses.replace(history.without_metrics(self._run), records=records)
        line = summary(recorded, now)
        running = line.state is State.RUNNING
        tails = {rank: history.tail(log, _TAIL_BYTES) for rank, log in history.logs(self._run).items()}
        return View(
            summary=line,
            records=metrics.joined([*(metrics.sampled(part, _RECORDS) for part in self._earlier), records]),
            lowest_loss=self._lowest if self._is_whole else None,
            seconds_left=self._seconds_left(recorded, line, now) if running else None,
            memory=self._memory_of_ranks(recorded.command.get("pid")) if running else {},
            most=self._most if running else {},
            complaints=complaints(tails, _COMPLAINTS),
            place=history.place(self._run) if running and line.updates is None else "",
        )

    def _read(self) -> None:
        new = self._metrics.new()
        if self._metrics.rewritten:
            self._records, self._lowest = [], None
        self._records += new
        if len(self._records) > _MOST_KEPT:
            self._records = [dict(record) for record in metrics.sampled(self._records, _RECORDS)]
        self._most |= memory.most(self._samples.new(), self._most)
        losses = metrics.finite_values(new, "loss")
        self._lowest = min([*losses, *([] if self._lowest is None else [self._lowest])], default=None)

    def _seconds_left(self, run: Recorded, line: Summary, now: float) -> float | None:
        if line.updates is None or not line.total:
            return None
        if self._pace is None:
            # Until updates are seen to pass, the pace is that of the whole run, its start-up included.
            # The first record of a run from the beginning tells of all updates up to its own.
            first = self._records[0].get("update") if line.resumed_from else 1
            passed = line.updates - first + 1 if isinstance(first, int) else 0
            began = started(run)
            spent = run.touched - began if run.touched is not None and began is not None else 0.0
            self._pace = Pace(spent / passed if passed > 0 and spent > 0 else None)
        self._pace.saw(now, line.updates)
        return self._pace.left(line.total, now)

    def _memory_of_ranks(self, launcher: object) -> dict[int, tuple[int, int | None]]:
        began = time.monotonic()
        if isinstance(launcher, int) and began >= self._memory_due:
            self._memory = {rank: (held.host, held.gpu) for rank, held in ranks.memory(launcher).items()}
            # Some drivers take seconds to answer, and watching must not slow the training down.
            self._memory_due = time.monotonic() + _REST * (time.monotonic() - began)
        return self._memory
