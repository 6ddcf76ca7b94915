"""The options of `trainwiz launch`: each is declared here once, and is a field of `Request` under the same name."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from trainwiz.language import t


class Options:
    """What typer shows and reads, with the defaults."""

    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [-- ARGS]",
            help=t("Project (default: the current folder) and arguments for its script; with --config: SCRIPT [ARGS]."),
        ),
    ] = None
    resume: Annotated[
        str,
        typer.Option("--resume", metavar="[RUN]", help=t("Continue the newest run, or RUN, from its last checkpoint.")),
    ] = ""
    new: Annotated[bool, typer.Option("--new", help=t("Start over, even if the newest run was preempted."))] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help=t("Show what would be done; start and write nothing."))] = (
        False
    )
    json: Annotated[bool, typer.Option("--json", help=t("With --dry-run: print JSON."))] = False
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help=t("Python interpreter that runs the training."))
    ] = ""
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="PREFIX", help=t("Ignore rules whose id starts with this; repeatable.")),
    ] = None
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="S", min=0.0, help=t("Seconds the ranks get after Ctrl-C to save and exit.")),
    ] = 30.0
    max_restarts: Annotated[
        int | None,
        typer.Option(
            "--max-restarts",
            metavar="N",
            min=0,
            help=t(
                "After a transient failure, restart from the newest checkpoint, at most N times (default: from the "
                "plan)."
            ),
        ),
    ] = None
    restarts_per_hour: Annotated[
        int,
        typer.Option(
            "--restarts-per-hour", metavar="N", min=1, help=t("With --max-restarts: at most N restarts within an hour.")
        ),
    ] = 10
    spares: Annotated[
        bool,
        typer.Option(
            "--spares",
            help=t("With --max-restarts: keep a spare process per rank with all imports done, for faster restarts."),
        ),
    ] = False
    auto_batch: Annotated[
        bool,
        typer.Option(
            "--auto-batch",
            help=t(
                "On out of memory: halve the micro-batch and double the accumulation; the real batch stays the same."
            ),
        ),
    ] = False
    debug: Annotated[
        str,
        typer.Option(
            "--debug",
            metavar="[RANK|all]",
            help=t(
                "Make rank 0, the given rank, several (0,2) or all wait for a debugger; the other ranks wait "
                "without a time limit."
            ),
        ),
    ] = ""
    on_hang: Annotated[
        str | None,
        typer.Option(
            "--on-hang",
            metavar="wait|stop",
            help=t(
                "On a hang: only report where each rank is, or also end the run with exit code 124 (default: from "
                "the plan)."
            ),
        ),
    ] = None
    hang_limit: Annotated[
        float | None,
        typer.Option(
            "--hang-limit",
            metavar="S",
            min=0.0,
            help=t(
                "Seconds without progress that count as a hang (0: learned from the run, at least 300; default: "
                "from the plan)."
            ),
        ),
    ] = None
    apply_fix: Annotated[
        bool,
        typer.Option(
            "--apply-fix",
            help=t("Change the plan to fix the newest run's failure, show the change, and launch again."),
        ),
    ] = False
    machine: Annotated[
        str, typer.Option("--machine", metavar="FILE", help=t("With --dry-run: use the machine described in FILE."))
    ] = ""
    machine_rank: Annotated[
        int | None,
        typer.Option(
            "--machine-rank",
            metavar="N",
            help=t("With several machines: the rank of this machine, from 0 (read from Slurm under srun)."),
        ),
    ] = None
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="S", min=0.1, help=t("With several machines: seconds to wait for the others.")),
    ] = 30.0
    config: Annotated[
        str,
        typer.Option(
            "--config",
            metavar="FILE",
            help=t("Launch SCRIPT [ARGS] with an accelerate configuration, without a project."),
        ),
    ] = ""


def taking(options: type) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Let typer see a command's context and the class's attributes as the parameters of the command."""
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(options, name), annotation=annotation)
        for name, annotation in inspect.get_annotations(options).items()
    ]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

    def give(command: Callable[..., int]) -> Callable[..., int]:
        signature: Any = command
        signature.__signature__ = inspect.Signature([context, *parameters])
        signature.__annotations__ = {one.name: one.annotation for one in (context, *parameters)}
        return command

    return give
