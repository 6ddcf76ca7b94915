"""The terminal while a run goes on: rank 0's output as it is, and below it a live line.

One owner for the last line. Rank 0's output goes out untouched; when it draws a progress bar of its own (a carriage
return tells), the last line is its; only otherwise, on a terminal, and after a complete line, ours appears there, and
is wiped before anything else is written.
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
from trainwiz.message import Message
from trainwiz.quantities import clock_time
from trainwiz.ui import console

NewMetrics = Callable[[], Sequence[Mapping[str, Any]]]
_WIPE = b"\r\x1b[K"
_LOCK_SECONDS = 0.5


class Screen:
    """What is on the terminal during a run. `output`, `tick` and `say` may come from different threads."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._fd: int | None = sys.stdout.fileno()
        self._column_0 = True
        self._owned_by_rank = False
        self._drawn = False

    def output(self, data: bytes) -> None:
        """Rank 0's bytes."""
        with self._lock:
            self._wipe()
            self._write(data)
            # Line endings of files from elsewhere are no progress bar.
            self._owned_by_rank = self._owned_by_rank or b"\r" in data.replace(b"\r\n", b"")
            self._column_0 = data.endswith(b"\n")

    def tick(self) -> None:
        """Renew the live line, if it is ours to draw."""
        line = self._progress.line()
        if not self._terminal or self._owned_by_rank or not line:
            return
        with self._lock:
            if self._column_0:
                self._wipe()
                self._write(columns.cut(line, console.width(sys.stdout) - 1).encode())
                self._drawn = True

    def say(self, message: Message) -> None:
        """A sentence of ours, on a line of its own."""
        # A terminal that is held (Ctrl-S) must not keep the person from being told, nor the ranks from being ended.
        held = self._lock.acquire(timeout=_LOCK_SECONDS)
        try:
            self._wipe()
            if not self._column_0:
                self._write(b"\n")
                self._column_0 = True
            # A terminal that closed: the ranks must still be ended in order.
            with contextlib.suppress(OSError):
                console.talk(message)
        finally:
            if held:
                self._lock.release()

    def close(self) -> None:
        """Leave the cursor at the start of an empty line."""
        with self._lock:
            self._wipe()
            if not self._column_0 and self._terminal:
                self._write(b"\n")

    def _wipe(self) -> None:
        if self._drawn:
            self._write(_WIPE)
            self._drawn = False

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and self._fd is not None:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # The reader or the terminal has gone. The training goes on, and its log is complete.
            self._fd = None


class Progress:
    """Where the training is, by its metrics: `new` gives those that came since it was last called."""

    def __init__(self, new: NewMetrics, total_updates: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._new, self._total, self._clock = new, total_updates, clock
        self._last: Mapping[str, Any] = {}
        self._first_seen: tuple[int, float] | None = None
        self._last_seen: tuple[int, float] | None = None

    def line(self) -> str:
        """Update, loss, speed and remaining time; empty before the first metrics."""
        self._take_in()
        update = self._last.get("update")
        if not isinstance(update, int):
            return ""
        parts = [
            t("update {update}/{total}", update=update, total=self._total)
            if self._total
            else t("update {update}", update=update)
        ]
        if isinstance(loss := self._last.get("loss"), (int, float)):
            parts.append(t("loss {loss:.4f}", loss=loss))
        if isinstance(speed := self._last.get("tokens_per_second"), (int, float)):
            parts.append(t("{speed:,.0f} tokens/s", speed=speed))
        if (seconds := self._seconds_left()) is not None:
            parts.append(t("{time} left", time=clock_time(seconds)))
        return " · ".join(parts)

    def _seconds_left(self) -> float | None:
        if not self._total or not self._first_seen or not self._last_seen:
            return None
        (update_0, time_0), (update_1, time_1) = self._first_seen, self._last_seen
        if update_1 <= update_0:
            return None
        per_update = (time_1 - time_0) / (update_1 - update_0)
        return max(0.0, per_update * (self._total - update_1) - (self._clock() - time_1))

    def _take_in(self) -> None:
        for value in self._new():
            if isinstance(update := value.get("update"), int):
                self._last = value
                self._last_seen = (update, self._clock())
                self._first_seen = self._first_seen or self._last_seen


def terminal_size() -> dict[str, str]:
    """The terminal's size for rank 0, whose output is a file, so that it cannot ask.

    COLUMNS and LINES are for everything, TQDM_NCOLS for progress bars: tqdm no longer reads the others (4.70), and a
    bar that is wider than the terminal leaves a line behind each time that it moves.
    """
    with contextlib.suppress(OSError, ValueError):
        size = os.get_terminal_size(sys.stdout.fileno())
        if size.columns:
            bar = max(1, size.columns - 1)
            return {"COLUMNS": str(size.columns), "LINES": str(size.lines), "TQDM_NCOLS": str(bar)}
    return {}
