"""What one run of a rehearsal left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwiz.message import Message
from trainwiz.outcome import SIGNAL_BASE
from trainwiz.rehearsal.setup import TrialRun

KILLED = SIGNAL_BASE + 9


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended, and what it wrote."""

    run: TrialRun
    """What was run."""
    exit_code: int
    """The worst of its ranks'."""
    seconds: float
    """From its start to its end."""
    records: Sequence[Mapping[str, Any]] = ()
    """The records of its metrics.jsonl."""
    weights: str = ""
    """A hash over the files of the final weights; empty if there are none."""
    notes: Sequence[Mapping[str, Any]] = ()
    """What each rank noted about its data and communication, by rank."""
    checkpoints: Sequence[str] = ()
    """The names of its checkpoints."""
    damaged: Sequence[str] = ()
    """Those of them whose files differ from their manifest."""
    cause: Message | None = None
    """Why it failed; None: it did not, or was meant to."""
    remedy: Message | None = None
    """What to do about it."""
    log: str = ""
    """The log of the rank that failed first."""

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each update."""
        return {r["update"]: r["loss"] for r in self.records if "loss" in r}

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """The metrics of each evaluation."""
        return [{n: v for n, v in r.items() if n != "update"} for r in self.records if "loss" not in r]

    def start(self, updates: int) -> int:
        """The update that it resumed from, in a training of so many updates."""
        taken = self.notes[0]["micro_batches"] if self.notes else 0
        return updates - int(taken) // self.run.split.accumulation

    @property
    def succeeded(self) -> bool:
        """Whether it ended as intended."""
        return self.exit_code == (KILLED if self.run.killed_at else 0)
