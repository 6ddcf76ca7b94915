"""The compilation of DeepSpeed's ops on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from trainwiz import columns
from trainwiz.language import t
from trainwiz.quantities import clock_time
from trainwiz.ui import console
from trainwiz.ui.safe import safe

_SOON = 2.0
"""Seconds that need no explanation."""
_EVERY_SECONDS = 30.0
"""Between two lines where there is no terminal, whose line could change."""


class Progress:
    """What is compiled and for how long: in one line that disappears at the end, or in lines without a terminal."""

    def __init__(self, missing: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._terminal, self._shown, self._due = sys.stderr.isatty(), False, _EVERY_SECONDS
        self._missing = bool(missing)
        if missing:
            names = ", ".join(missing)
            console.talk(t("compiling DeepSpeed's ops for this machine, once (takes a few minutes): {ops}", ops=names))

    def show(self, op: str, step: tuple[int, int] | None, *, waits: bool) -> None:
        """Report progress: the op, and its step of how many; `waits` for another process that compiles it."""
        seconds = self._clock() - self._began
        if not op and self._missing:
            words = t("importing DeepSpeed, {time}", time=clock_time(seconds))
        elif not op or not (self._missing or step):
            words = t("checking DeepSpeed's ops, {time}", time=clock_time(seconds))
        elif waits:
            words = t("another process is compiling {op}; waiting for it, {time}", op=op, time=clock_time(seconds))
        elif step:
            words = t(
                "compiling {op}, {done} of {all} steps, {time}",
                op=op,
                done=step[0],
                all=step[1],
                time=clock_time(seconds),
            )
        else:
            words = t("compiling {op}, {time}", op=op, time=clock_time(seconds))
        if self._terminal and seconds >= _SOON:
            self._shown = True
            sys.stderr.write("\r" + safe(columns.cut(words, max(1, console.width(sys.stderr) - 1))) + "\x1b[K")
            sys.stderr.flush()
        elif not self._terminal and seconds >= self._due:
            self._due += _EVERY_SECONDS
            console.talk(words)

    def aside(self, words: str) -> None:
        """Print a line that stays."""
        self._wipe()
        console.talk(words)

    def end(self) -> None:
        """Remove the line."""
        self._wipe()

    def done(self) -> None:
        """Say that everything is compiled, if it was announced."""
        self._wipe()
        if self._missing:
            words = t("compiled in {time}; later launches reuse them", time=clock_time(self._clock() - self._began))
            console.talk(words)

    def _wipe(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._shown = False
