"""Follow growing files and pass on what is appended to them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_TYPED_SECONDS, _POLL_SECONDS = 0.03, 0.1
"""Between looks: short enough that a typed answer's echo feels immediate, and longer where nobody can type."""
_TICK_SECONDS = 0.5


Files = Callable[[], Sequence[Path]]


# docs/decisions/launching.md: Ranks write to log files, and the launcher follows rank 0's
class Follower:
    """A thread that reads the files' growth and passes it on byte for byte; `close` after their writers have ended.

    `files` names them, and is asked again as time goes on. `output` and `tick` are called on that thread, one at a
    time. A file that does not exist yet is waited for.
    """

    def __init__(self, files: Files, output: Callable[[bytes], None], tick: Callable[[], None]) -> None:
        self._find = files
        self._open: dict[Path, int] = {}
        self._rest = _TYPED_SECONDS if sys.stdin and sys.stdin.isatty() else _POLL_SECONDS
        self._output, self._tick = output, tick
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read to the end, then stop."""
        self._ended.set()
        self._thread.join()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _follow(self) -> None:
        next_tick = time.monotonic() + _TICK_SECONDS
        while True:
            ended = self._ended.is_set()  # asked before reading: what was written by then is still read
            grew = self._read_all()
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + _TICK_SECONDS
            if ended and not grew:
                return
            if not grew:
                self._ended.wait(self._rest)

    def _read_all(self) -> bool:
        grew = False
        for file in self._find():
            # Kept open: this is asked ten times a second, for as long as a training lasts.
            if file not in self._open:
                try:
                    self._open[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
            data = os.read(self._open[file], _CHUNK_BYTES)
            if data:
                grew = True
                self._output(data)
        return grew
