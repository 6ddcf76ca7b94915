"""What runs: a launch that was checked, with its command, its run folder and its place. Everything below shares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.plan import Plan
from trainwiz.plan.model import Supervision
from trainwiz.process.torchrun import WorkerLogs

if TYPE_CHECKING:
    from trainwiz.cluster import Place
    from trainwiz.command import Command
    from trainwiz.machine import Machine
    from trainwiz.store.runs import Run
    from trainwiz.workflows.launch.request import Request
    from trainwiz.workflows.launch.team import Team


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A launch that is ready to run. What follows from the request and the plan is computed, not stored."""

    request: Request
    """What was asked."""
    machine: Machine
    """This machine, as it was found."""
    command: Command
    """What to start."""
    run: Run
    """The run's folder."""
    ranks: range
    """The ranks of this machine."""
    plan: Plan | None = None
    """The plan; None for a script that trainwiz did not write."""
    place: Place | None = None
    """Where this machine stands among several; None on one machine."""
    continues: Run | None = None
    """The run that this one continues."""
    config_values: Mapping[str, Any] = field(default_factory=dict)
    """The values of the accelerate configuration, where the request names one."""
    debug_ports: Mapping[int, int] = field(default_factory=dict)
    """The debugger's port of each rank that waits for one."""
    team: Team | None = None
    """The other machines, where a run over several goes on after a failure; None: it ends with its first attempt."""
    attempt: int = 0
    """Which attempt this is, from 0."""

    @property
    def workers(self) -> WorkerLogs | None:
        """The logs of torchrun's workers; None where trainwiz starts the ranks itself."""
        return (
            WorkerLogs(self.run.logs.resolve(), first_rank=self.ranks.start, attempt=self.attempt)
            if self.place
            else None
        )

    @property
    def launcher_log(self) -> Path:
        """torchrun's own output on this machine, besides its workers' logs."""
        return self.run.logs / f"launcher-{self.ranks.start}.log"

    @property
    def max_restarts(self) -> int:
        """How often a failed attempt may be followed by another."""
        # What restarts ranks has to reach all of them, and nobody is to restart under a debugger.
        if (self.place and self.team is None) or self.debug_ports:
            return 0
        asked = self.request.max_restarts
        return self._planned.max_restarts if asked is None else asked

    @property
    def hang_limit(self) -> float:
        """Seconds of silence that count as a hang; 0: learned from the run."""
        asked = self.request.hang_limit
        return self._planned.hang_limit if asked is None else asked

    @property
    def stop_on_hang(self) -> bool:
        """Whether a hang ends the run."""
        return (self.request.on_hang or self._planned.on_hang) == "stop"

    @property
    def standby(self) -> bool:
        """Whether each rank has a standby process, which the next attempt starts from."""
        return self.request.spares and self.plan is not None and self.max_restarts > 0

    @property
    def total_updates(self) -> int | None:
        """Updates until the end, where the plan decides them."""
        arguments = " ".join(self.request.arguments)
        # Only the script knows an overridden length.
        if self.plan is None or "n_steps" in arguments or "n_epochs" in arguments:
            return None
        return self.plan.schedule.n_steps if self.plan.schedule.train_strategy == "steps" else None

    @property
    def _planned(self) -> Supervision:
        return self.plan.supervision if self.plan else Supervision()
