"""What was asked of a launch: the command line, understood. Each field is the option of its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Request:
    """A launch as it was asked for. None leaves a value to the plan."""

    folder: str
    """The project's folder."""
    config: str
    """An accelerate configuration, launched with `script` instead of a project; empty for a project."""
    script: str
    """The script that `config` launches."""
    arguments: tuple[str, ...]
    """Arguments for the training script."""
    resume: str
    """The run to continue: `latest` or a name; empty: none is named."""
    new: bool
    """Start anew, even if the newest run was preempted."""
    apply_fix: bool
    """Change the plan as the newest run's failure asks before the launch."""
    dry_run: bool
    """Show what would be done; start and write nothing."""
    json: bool
    """Show it as JSON."""
    python: str
    """Path of the Python that runs the training."""
    ignore: tuple[str, ...]
    """Prefixes of the rules to leave out."""
    grace: float
    """Seconds that the ranks get to save and end after a Ctrl-C."""
    max_restarts: int | None
    """Restarts after failures that may pass."""
    restarts_per_hour: int
    """The most restarts within an hour."""
    spares: bool
    """Keep a standby process for each rank, with all imports done."""
    auto_batch: bool
    """Halve the micro-batch when out of memory."""
    debug: str
    """Ranks that wait for a debugger: `all`, or numbers with commas; empty: none."""
    on_hang: str | None
    """What to do about a hang: `wait` or `stop`."""
    hang_limit: float | None
    """Seconds of silence that count as a hang; 0: learned from the run."""
    machine: str
    """A file that describes the machine, for a dry run; empty: this machine."""
    machine_rank: int | None
    """The rank of this machine among several; None leaves it to the cluster."""
    wait: float
    """Seconds to wait for the other machines."""
