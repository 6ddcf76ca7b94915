"""What was asked of a launch."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import say
from trainwiz.outcome import STOPPED_CODE
from trainwiz.workflows import machine_options
from trainwiz.workflows.option import argument, flag, option


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `trainwiz launch`. What is empty was not typed; None leaves a value to the plan."""

    words: tuple[str, ...] = argument(
        "[DIR] [-- ARGS]",
        say("Project (default: the current folder) and arguments for its script; with --config: SCRIPT [ARGS]."),
    )
    arguments: tuple[str, ...] = ()
    """Arguments for the training script."""
    replays: str = ""
    """The name of the run that this launch repeats."""
    resume: str = option(
        "[RUN|auto]",
        say(
            "Continue the newest run, or RUN, from its last checkpoint; auto: if there is one to continue (the default "
            "in a scheduler's job)."
        ),
    )
    new: bool = flag(say("Start over, even if the newest run was preempted."))
    dry_run: bool = flag(say("Show what would be done; start and write nothing."))
    json: bool = flag(say("With --dry-run: print JSON."))
    python: str = option("PATH", say("Python interpreter that runs the training."))
    ignore: tuple[str, ...] = option("PREFIX", say("Ignore rules whose id starts with this; repeatable."))
    grace: float = option("S", say("Seconds the ranks get after Ctrl-C to save and exit."), 30.0, min=0.0)
    stopped_code: int = option(
        "CODE",
        say("Exit code of a run that was stopped before its end and can be continued, for schedulers."),
        STOPPED_CODE,
        min=0,
    )
    max_restarts: int | None = option(
        "N",
        say("After a transient failure, restart from the newest checkpoint, at most N times (default: from the plan)."),
        None,
        min=0,
    )
    restarts_per_hour: int = option("N", say("With --max-restarts: at most N restarts within an hour."), 10, min=1)
    spares: bool = flag(
        say("With --max-restarts: keep a spare process per rank with all imports done, for faster restarts.")
    )
    auto_batch: bool = flag(
        say("On out of memory: halve the micro-batch and double the accumulation; the real batch stays the same.")
    )
    debug: str = option(
        "[RANK|all]",
        say(
            "Make rank 0, the given rank, several (0,2) or all wait for a debugger; the other ranks wait without a "
            "time limit."
        ),
    )
    on_hang: str | None = option(
        "wait|stop",
        say(
            "On a hang: only report where each rank is, or also end the run with exit code 124 (default: from the "
            "plan)."
        ),
        None,
    )
    hang_limit: float | None = option(
        "S",
        say(
            "Seconds without progress that count as a hang (0: learned from the run, at least 300; default: from "
            "the plan)."
        ),
        None,
        min=0.0,
    )
    apply_fix: bool = flag(say("Change the plan to fix the newest run's failure, show the change, and launch again."))
    machine: str = option("FILE", say("With --dry-run: use the machine described in FILE."))
    machine_rank: int | None = machine_options.machine_rank()
    wait: float | None = machine_options.wait()
    nnodes: str = option(
        "MIN:MAX",
        say(
            "With several machines: if some are lost, continue with as few as MIN, and with all again when they "
            "come back; the real batch stays the same. Machine 0 cannot be lost."
        ),
    )
    rejoin: float = option(
        "S",
        say("With --max-restarts or --nnodes: seconds to wait for a lost machine before continuing or ending."),
        60.0,
        min=0.0,
    )
    hosts: str = option(
        "A,B[:SLOTS]",
        say("Launch on these hosts over ssh, in the same folder with the same Python; the first is machine 0."),
    )
    secret: str = machine_options.secret()
    config: str = option("FILE", say("Launch SCRIPT [ARGS] with an accelerate configuration, without a project."))

    @property
    def folder(self) -> str:
        """The project's folder."""
        return "." if self.config else "".join(self.words[:1]) or "."

    @property
    def script(self) -> str:
        """The script that `config` launches."""
        return "".join(self.words[:1]) if self.config else ""
