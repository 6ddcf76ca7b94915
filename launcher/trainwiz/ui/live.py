"""The terminal during a run: rank 0's output unchanged, and a live line below it.

The last line has one owner. When rank 0 draws a progress bar (it writes a carriage return), the last line belongs to
it. Otherwise, on a terminal and after a complete line, the live line is drawn there, and erased before anything else
is written.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainwiz import columns
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.quantities import clock_time, size
from trainwiz.record import metrics
from trainwiz.record.pace import Pace
from trainwiz.ui import console
from trainwiz.ui.rate import rate
from trainwiz.ui.secret_filter import SecretFilter
from trainwiz.ui.traceback_filter import TracebackFilter

NewMetrics = Callable[[], Sequence[Mapping[str, Any]]]
_WIPE = b"\r\x1b[K"
_LOCK_SECONDS = 0.5
_NOTICEABLE = 0.01
"""Shares of the time below this are not shown."""


class Screen:
    """Writes to the terminal during a run. `output`, `tick` and `say` may be called by different threads."""

    def __init__(self, progress: Progress, secrets: frozenset[str] = frozenset()) -> None:
        """`secrets` are hidden where no terminal shows the output."""
        self._progress = progress
        self._lock = threading.Lock()
        self._terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._fd: int | None = sys.stdout.fileno()
        self._column_0 = True
        self._owned_by_rank = False
        self._drawn = False
        self._tracebacks = TracebackFilter()
        self._secrets = None if sys.stdout.isatty() else SecretFilter(secrets)

    def output(self, data: bytes) -> None:
        """Write rank 0's bytes; a traceback waits until it is known who is to blame."""
        with self._lock:
            self._show(self._tracebacks.feed(data))

    def judged(self, *, innocent: bool) -> None:
        """Show what waited, or only that it is in the log where another rank is to blame."""
        with self._lock:
            waited = self._tracebacks.flush()
            if not innocent:
                self._show(waited)
        if innocent and waited:
            self.say(say("rank 0 failed only because another rank failed; its traceback is in its log"))

    def _show(self, data: bytes) -> None:
        if self._secrets:
            data = self._secrets.feed(data) if data else self._secrets.overdue()
        self._show_now(data)

    def _show_now(self, data: bytes) -> None:
        if not data:
            return
        self._wipe()
        self._write(data)
        # CRLF is a line ending, not a progress bar.
        self._owned_by_rank = self._owned_by_rank or b"\r" in data.replace(b"\r\n", b"")
        self._column_0 = data.endswith(b"\n")

    def tick(self) -> None:
        """Redraw the live line, unless rank 0 draws a progress bar."""
        with self._lock:
            self._show(self._tracebacks.overdue())
        line = self._progress.line()
        if not self._terminal or self._owned_by_rank or not line:
            return
        with self._lock:
            if self._column_0:
                self._wipe()
                self._write(columns.cut(line, console.width(sys.stdout) - 1).encode())
                self._drawn = True

    def say(self, message: Message) -> None:
        """Print a sentence on a line of its own."""
        # A terminal that is stopped (Ctrl-S) must neither hide the sentence nor keep the ranks from being ended.
        held = self._lock.acquire(timeout=_LOCK_SECONDS)
        try:
            self._wipe()
            if not self._column_0:
                self._write(b"\n")
                self._column_0 = True
            # The terminal may be closed; the ranks must still be ended in order.
            with contextlib.suppress(OSError):
                console.talk(message)
        finally:
            if held:
                self._lock.release()

    def line(self, text: str) -> None:
        """Print a line as it is, among rank 0's output."""
        with self._lock:
            self._wipe()
            self._write(b"" if self._column_0 else b"\n")
            self._write(f"{text}\n".encode())
            self._column_0 = True

    def close(self) -> None:
        """Leave the cursor at the start of an empty line."""
        with self._lock:
            self._show(self._tracebacks.flush())
            self._show_now(self._secrets.flush() if self._secrets else b"")
            self._wipe()
            if not self._column_0 and self._terminal:
                self._write(b"\n")

    def _wipe(self) -> None:
        if self._drawn:
            self._write(_WIPE)
            self._drawn = False

    def _write(self, data: bytes) -> None:
        try:
            if self._fd is not None:
                console.write(self._fd, data)
        except OSError:
            # The reader or the terminal is gone. The training continues, and its log is complete.
            self._fd = None


def used(use: metrics.Use) -> list[str]:
    """How well the GPUs are used, as far as it is known; waits for data only where they are noticeable."""
    parts = [] if use.mfu is None else [t("MFU {share:.1%}", share=use.mfu)]
    if use.gpu_peak_bytes is not None:
        parts.append(t("GPU memory: at most {most}", most=size(use.gpu_peak_bytes)))
    if use.data_wait is not None and use.data_wait >= _NOTICEABLE:
        parts.append(t("{share:.0%} of the time waiting for data", share=use.data_wait))
    return parts


class Progress:
    """How far the training is, by its metrics. `new` returns those written since its last call.

    `place` says where rank 0's own code is.
    """

    def __init__(
        self,
        new: NewMetrics,
        total_updates: int | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        task: str | None = None,
        place: Callable[[], str] = str,
    ) -> None:
        self._new, self._total, self._clock = new, total_updates, clock
        self._task, self._place, self._began = task, place, clock()
        self._last: Mapping[str, Any] = {}
        self._pace = Pace()

    def line(self) -> str:
        """Update, loss, speed and remaining time; before the first metrics, where rank 0 is, if it says so."""
        self._read_new()
        update = self._last.get("update")
        if not isinstance(update, int):
            place, spent = self._place(), clock_time(self._clock() - self._began)
            return t("starting · rank 0 is in {place} · {time}", place=place, time=spent) if place else ""
        parts = [
            t("update {update}/{total}", update=update, total=self._total)
            if self._total
            else t("update {update}", update=update)
        ]
        if isinstance(loss := self._last.get("loss"), (int, float)):
            parts.append(t("loss {loss:.4f}", loss=loss))
        if isinstance(speed := self._last.get("tokens_per_second"), (int, float)):
            parts.append(rate(speed, self._task))
        if self._total and (seconds := self._pace.left(self._total, self._clock())) is not None:
            parts.append(t("{time} left", time=clock_time(seconds)))
        parts += used(metrics.use([self._last]))
        return " · ".join(parts)

    def _read_new(self) -> None:
        for value in self._new():
            if isinstance(update := value.get("update"), int):
                self._last = value
                self._pace.saw(self._clock(), update)


def terminal_size() -> dict[str, str]:
    """Variables that tell rank 0 the terminal's size, which it cannot ask for, since its output is a file.

    COLUMNS and LINES are for all programs, TQDM_NCOLS for progress bars: tqdm 4.70 no longer reads the others, and a
    bar wider than the terminal leaves a line behind with every step.
    """
    with contextlib.suppress(OSError, ValueError):
        size = os.get_terminal_size(sys.stdout.fileno())
        if size.columns:
            bar = max(1, size.columns - 1)
            return {"COLUMNS": str(size.columns), "LINES": str(size.lines), "TQDM_NCOLS": str(bar)}
    return {}
