"""DeepSpeed's ops: which of them fit this machine, and which are built."""

from __future__ import annotations

from pathlib import Path

from trainwiz.checkup.surroundings import Op
from trainwiz.probe.locks import extensions_folder
from trainwiz.process.capture import Asked, Captured

SECONDS = 90.0
"""Importing DeepSpeed takes 3 to 6 s, and several times as long from a cold network disk."""

_OPS = Path(__file__).parent / "inside" / "ops.py"


Answer = tuple[tuple[Op, ...] | None, str | None]
"""The ops; or None, and why DeepSpeed could not be asked."""


def start(python: str) -> Asked[Answer]:
    """Start asking at once."""
    return Asked([python, str(_OPS), str(extensions_folder())], _understood, seconds=SECONDS)


def _understood(captured: Captured) -> Answer:
    found = captured.answer
    if found is None or "ops" not in found:
        return None, captured.problem
    return tuple(Op(**op) for op in found["ops"]), None
