"""DeepSpeed's ops: which of them fit this machine, and which are built."""

from __future__ import annotations

import json
from pathlib import Path

from trainwiz.checkup.surroundings import Op
from trainwiz.probe.locks import extensions_folder
from trainwiz.process.capture import Running

SECONDS = 90.0
"""Importing DeepSpeed takes 3 to 6 s, and several times as long from a cold network disk."""

_OPS = Path(__file__).parent / "inside" / "ops.py"


class PendingOps:
    """A child process that asks DeepSpeed about its ops."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def cancel(self) -> None:
        """Stop asking."""
        self._running.cancel()

    def result(self) -> tuple[tuple[Op, ...] | None, str | None]:
        """The ops; or None, and why DeepSpeed could not be asked."""
        ended = self._running.result(SECONDS)
        if ended.timed_out:
            return None, f"no answer within {SECONDS:g} s"
        try:
            found = json.loads(ended.stdout.strip().splitlines()[-1])
            return tuple(Op(name=o["name"], compatible=o["compatible"], built=o["built"]) for o in found["ops"]), None
        except (IndexError, ValueError, KeyError, TypeError):
            return None, ended.last_line or f"ended with code {ended.code}"


def start(python: str) -> PendingOps:
    """Start asking at once."""
    return PendingOps(Running([python, str(_OPS), str(extensions_folder())]))
