"""What was asked of a launch: the command line, understood. Each field is the option of its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.probe import interpreter
from trainwiz.rules import selection
from trainwiz.store import runs

ALL_RANKS = "all"


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


def understood(words: list[str] | None, config: str, arguments: Sequence[str], **options: Any) -> Request:
    """The request that a command line makes. Raises `UsageError` where its words contradict each other."""
    first, *others = words or [""]
    if others and not config:
        raise UsageError(
            say("{word}: only one project can be launched at a time", word=others[0]),
            say("put arguments for the training script after --"),
        )
    options["python"] = interpreter.located(options["python"] or sys.executable)
    options["ignore"] = selection.prefixes(options["ignore"] or ())
    request = Request(
        folder="." if config else first or ".",
        config=config,
        script=first if config else "",
        arguments=tuple(others if config else arguments),
        **options,
    )
    _check(request)
    return request


def left_out(option: str, following: str) -> list[str]:
    """The value of an option that may stand alone, where what follows it is none."""
    if option == "--resume":
        return [] if runs.is_name(following) else [runs.LATEST]
    if option == "--debug":
        return [] if names_ranks(following) else ["0"]
    return []


def names_ranks(word: str) -> bool:
    """Whether a word on the command line says which ranks: all, 1, or 0,2."""
    return word == ALL_RANKS or word.replace(",", "").isdigit()


def _check(request: Request) -> None:
    if request.json and not request.dry_run:
        raise UsageError(say("--json needs --dry-run; a launch shows the training's own output"))
    if request.on_hang not in (None, "wait", "stop"):
        raise UsageError(say("--on-hang {word}: must be wait or stop", word=request.on_hang))
    if request.new and request.resume:
        raise UsageError(say("--new starts over and --resume continues; use only one of them"))
    if request.apply_fix and (request.config or request.json):
        raise UsageError(
            say("--apply-fix only works with trainwiz projects and cannot be combined with --config or --json")
        )
