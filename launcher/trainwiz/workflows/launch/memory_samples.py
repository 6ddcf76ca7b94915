"""The memory of the ranks, recorded from time to time while they train: `memory.jsonl` of a run."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainwiz.probe.ranks import RankMemory

FIRST_SECONDS = 3.0
LEAST_SECONDS = 2.0
_PART = 300
"""Of the time so far: no two samples are closer than this part of it, so that a week's file is small, too."""
_REST = 300
"""Of a sample's own time, which some drivers make seconds: at least so many times as long without one."""


class Sampler:
    """A thread that writes until `close`; `file` is the run's."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a sample that is being taken is not waited for."""
        self._ended.set()

    def _sample(self) -> None:
        began, pause = time.monotonic(), FIRST_SECONDS
        # A disk that is full, a process that is gone: the training goes on, and so does its record without this.
        with contextlib.suppress(OSError):
            while not self._ended.wait(pause):
                # The first import takes longer than a sample: it must not make the next one wait for a minute.
                from trainwiz.probe import ranks

                before = time.monotonic()
                line = _line(ranks.memory(os.getpid()))
                now = time.monotonic()
                pause = max(LEAST_SECONDS, (now - began) / _PART, (now - before) * _REST)
                if line and not self._ended.is_set():
                    with self._file.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")


def _line(found: Mapping[int, RankMemory]) -> dict[str, Any]:
    if not found:
        return {}
    line: dict[str, Any] = {"at": round(time.time(), 1), "host": {str(n): held.host for n, held in found.items()}}
    gpus = {str(n): held.gpu for n, held in found.items() if held.gpu is not None}
    return {**line, "gpu": gpus} if gpus else line
