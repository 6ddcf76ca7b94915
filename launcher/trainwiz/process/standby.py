"""Standby ranks: for each rank a process that has imported what the script imports, for the next attempt.

Importing torch and its kin takes most of the time from a rank's death to the next update.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwiz.process.child import Process, spawn
from trainwiz.process.guardian import MARK, new_mark
from trainwiz.process.stacks import INSIDE

_PIPE_BYTES = 60_000
"""What a pipe takes without a reader (64 KiB on Linux, pipe(7)): a standby rank that is importing does not read."""
_OWN = (MARK, "PYTHONPATH", "TRAINWIZ_STACKS", "TRAINWIZ_RANK")
"""Variables that may differ between waiting and running."""


@dataclass(frozen=True, kw_only=True)
class _Standby:
    process: subprocess.Popen[bytes]
    orders: int
    environ: Mapping[str, str]


# docs/decisions/supervision.md: Spare ranks wait with their imports done
class StandbyRanks:
    """One for each rank. Call from the main thread, whose end ends them; `metrics` shows that the training goes on."""

    def __init__(self, metrics: Path) -> None:
        self.mark = new_mark()
        self._metrics = metrics
        self._waiting: dict[int, _Standby] = {}

    def prepare(self, processes: Sequence[Process]) -> None:
        """Start one for each of these ranks, for the next attempt."""
        self.close()
        self.mark = new_mark()
        for process in processes:
            with contextlib.suppress(OSError):
                self._waiting[process.rank] = self._start(process)

    def take(self, process: Process, environ: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """The rank's standby process, turned into the rank; None if none fits."""
        standby = self._waiting.pop(process.rank, None)
        if standby is None:
            return None
        order = json.dumps({"argv": [*process.argv[2:]], "environ": dict(environ), "log": str(process.log)}).encode()
        fits = standby.process.poll() is None and len(order) < _PIPE_BYTES and _alike(standby.environ, environ)
        with contextlib.suppress(BrokenPipeError):
            os.write(standby.orders, order if fits else b"")
        os.close(standby.orders)
        return standby.process if fits else None

    def close(self) -> None:
        """End those that still wait."""
        for standby in self._waiting.values():
            os.close(standby.orders)
            standby.process.kill()
            standby.process.wait()
        self._waiting.clear()

    def _start(self, process: Process) -> _Standby:
        environ = {**os.environ, "PYTHONUNBUFFERED": "1", **process.environ, MARK: self.mark}
        reading, writing = os.pipe()
        try:
            with tempfile.TemporaryFile() as said:
                words = [process.argv[0], str(INSIDE / "standby.py"), str(reading), process.argv[2], str(self._metrics)]
                started = spawn(words, process, environ, said, pass_fds=(reading,))
        except OSError:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return _Standby(process=started, orders=writing, environ=environ)


def _alike(waiting: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether what was imported under one environment may run under the other."""
    return {k: v for k, v in waiting.items() if k not in _OWN} == {k: v for k, v in wanted.items() if k not in _OWN}
