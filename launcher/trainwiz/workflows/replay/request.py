"""What was asked of `trainwiz replay`."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import say
from trainwiz.workflows import machine_options
from trainwiz.workflows.option import argument, flag, option

LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `trainwiz replay`. What is empty was not typed."""

    run: str = argument("[RUN] [-- ARGS]", say("Name or folder of a run (default: the newest run here)."), LATEST)
    arguments: tuple[str, ...] = ()
    """Arguments for the script in place of the recorded ones."""
    into: str = option(
        "DIR", say("Where to rebuild the project if it changed (default: PROJECT-replay-RUN beside it).")
    )
    dry_run: bool = flag(say("Show what differs and what would be done; start and write nothing."))
    compare: str = option("RUN", say("Do not train; compare the curves with those of RUN."))
    tolerance: float | None = option(
        "X",
        say("Relative difference up to which curves count as equal (default: 1e-5 in fp32, 2e-2 in 16 bits)."),
        None,
        min=0.0,
    )
    python: str = option("PATH", say("Python interpreter that runs the training (default: the recorded one)."))
    machine_rank: int | None = machine_options.machine_rank()
    wait: float | None = machine_options.wait()
    secret: str = machine_options.secret()
    json: bool = flag(say("With --dry-run or --compare: print JSON."))
