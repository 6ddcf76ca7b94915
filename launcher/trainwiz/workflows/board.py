"""`trainwiz board`: one page that shows a project's runs while they go on, for this machine's browser only."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from trainwiz import files
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.network.pages import Page, PageServer, Query
from trainwiz.record import redaction
from trainwiz.record.differences import differences
from trainwiz.record.run import Recorded, State, Summary, summary
from trainwiz.store import history, plans, runs, templates
from trainwiz.store.runs import Run
from trainwiz.ui import board as pages
from trainwiz.ui import console
from trainwiz.ui import page as report

_BRIEF_BYTES = 1 << 15
"""Of a run's metrics, for its line in the table: 50 runs are read before the first paint."""
_LOG_BYTES = 1 << 16
_KEY_BYTES = 1 << 14
"""More than any secret is long."""
_RANK = re.compile("[0-9]{1,9}")
_MOST_COMPARED = 16
_MOST_KEPT = 256
"""Answers that are kept until their runs change."""

T = TypeVar("T")


def show(folder: str, *, port: int) -> None:
    """Serve the page until Ctrl-C, and print its address."""
    project = Path(folder)
    if not project.is_dir():
        raise UsageError(say("{folder} is not a folder", folder=project))
    board = Board(project)
    try:
        server = PageServer(board.page, port)
    except OSError as error:
        raise TrainwizError(
            say("no free port from {port} on: {problem}", port=port, problem=error.strerror or error),
            say("choose another one: trainwiz board --port N"),
        ) from None
    console.data(server.url)
    console.talk(
        t(
            "from another machine: ssh -N -L {port}:127.0.0.1:{port} {host}, then open the same address there",
            port=server.port,
            host=socket.gethostname(),
        ),
        style="dim",
    )
    console.talk(t("Ctrl-C ends it; runs continue"), style="dim")
    try:
        server.serve()
    except KeyboardInterrupt:
        console.talk()
    finally:
        server.release()


class Board:
    """The pages of a project's runs. What did not change is not read again."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._templates = templates.load()
        self._kept: dict[tuple[object, ...], object] = {}
        self._lock = threading.Lock()

    def page(self, path: str, query: Query) -> Page | None:
        """The page of a path; None where there is none."""
        known: dict[str, Callable[[Query], Page | None]] = {
            "": lambda _: self._shell(),
            "runs": lambda _: self._table(),
            "compare": self._comparison,
            "run": self._run,
            "log": self._log,
            "diff": self._diff,
        }
        answer = known.get(path)
        return answer(query) if answer else None

    def _shell(self) -> Page:
        nonce, html = pages.shell(self._summaries(), files.resolved(self._project).name, self._templates)
        allowed = ("style-src 'unsafe-inline'", f"script-src 'nonce-{nonce}'", "connect-src 'self'", "img-src data:")
        policy = "; ".join(("default-src 'none'", *allowed))
        return Page(body=html, policy=policy)

    def _table(self) -> Page:
        return Page(body=pages.table(self._summaries(), self._templates))

    def _comparison(self, query: Query) -> Page:
        chosen = self._named(query.get("run", ()))[:_MOST_COMPARED]
        stamps = tuple((run.name, history.stamp(run)) for run in chosen)
        return Page(body=self._once(("compare", stamps), lambda: self._compared(chosen)))

    def _compared(self, chosen: Sequence[Run]) -> str:
        return pages.comparison([(run.name, self._curve(run)) for run in chosen], self._templates)

    def _curve(self, run: Run) -> Sequence[Recorded]:
        """The run and those that it continues, with as many records as a curve needs."""
        key = ("curve", run.name, history.stamp(run))
        return self._once(key, lambda: [*history.earlier(run, history.sampled), history.sampled(run)])

    def _run(self, query: Query) -> Page | None:
        run = self._one(query)
        return (
            None if run is None else Page(body=self._once(("run", run.name, history.stamp(run)), lambda: _report(run)))
        )

    def _log(self, query: Query) -> Page | None:
        run = self._one(query)
        if run is None:
            return None
        logs = history.logs(run)
        rank = next((int(word) for word in query.get("rank", ()) if _RANK.fullmatch(word)), min(logs, default=0))
        text = history.tail(logs[rank], _LOG_BYTES + _KEY_BYTES) if rank in logs else ""
        # The logs of a run that has ended hide secrets already, and those of one that goes on do not. One that the
        # beginning of the page would cut is hidden before it is cut.
        hidden = redaction.text(text)[-_LOG_BYTES:]
        return Page(body=pages.log(hidden, rank, list(logs), self._templates))

    def _diff(self, query: Query) -> Page | None:
        chosen = self._named(query.get("run", ()))
        if len(chosen) != 2:
            return None
        before, after = (history.brief(run, _BRIEF_BYTES) for run in chosen)
        return Page(body=pages.diff(before.name, after.name, differences(before, after), self._templates))

    def _one(self, query: Query) -> Run | None:
        return next(iter(self._named(query.get("run", ())[:1])), None)

    def _named(self, names: Sequence[str]) -> list[Run]:
        """The runs of these names that exist, in this order; a name is never a path."""
        known = {run.name: run for run in runs.every(self._project)}
        return [known[name] for name in dict.fromkeys(names) if name in known]

    def _summaries(self) -> list[Summary]:
        """All runs, the newest first."""
        return [self._summary(run) for run in reversed(runs.every(self._project))]

    def _summary(self, run: Run) -> Summary:
        key = ("summary", run.name, history.stamp(run))
        found = self._once(key, lambda: summary(history.brief(run, _BRIEF_BYTES), time.time()))
        if found.state is not State.RUNNING:
            return found
        # It ends without a trace where its launcher is killed, and gets older without one.
        return summary(history.brief(run, _BRIEF_BYTES), time.time())

    def _once(self, key: tuple[object, ...], made: Callable[[], T]) -> T:
        with self._lock:
            if key in self._kept:
                return self._kept[key]  # type: ignore[return-value]
        value = made()
        with self._lock:
            while len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = value
        return value


def _report(run: Run) -> str:
    """The run's own page, as `trainwiz report` writes it."""
    lineage = [*history.earlier(run, history.sampled), _sampled(run)]
    template = templates.load()[report.TEMPLATE]
    return report.page(lineage, plans.reasons(lineage[-1].plan_text), template, time.time())


def _sampled(run: Run) -> Recorded:
    return history.with_memory(history.sampled(run), run)
