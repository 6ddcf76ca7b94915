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
            help=t("The project (default: here) and arguments for its script; with --config: SCRIPT [ARGS]."),
        ),
    ] = None
    resume: Annotated[
        str,
        typer.Option(
            "--resume", metavar="[RUN]", help=t("Continue the newest run, or the one named, from its last checkpoint.")
        ),
    ] = ""
    new: Annotated[bool, typer.Option("--new", help=t("Start anew, also where the newest run was preempted."))] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help=t("Show what would be done; start and write nothing."))] = (
        False
    )
    json: Annotated[bool, typer.Option("--json", help=t("With --dry-run: as JSON."))] = False
    python: Annotated[str, typer.Option("--python", metavar="PATH", help=t("The Python that runs the training."))] = ""
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="PREFIX", help=t("Leave out rules whose id starts so; may be given repeatedly.")
        ),
    ] = None
    grace: Annotated[
        float,
        typer.Option(
            "--grace", metavar="S", min=0.0, help=t("After Ctrl-C: seconds that the ranks get to save and end.")
        ),
    ] = 30.0
    max_restarts: Annotated[
        int | None,
        typer.Option(
            "--max-restarts",
            metavar="N",
            min=0,
            help=t(
                "After a failure that may pass: go on from the newest checkpoint, at most N times (else by the plan)."
            ),
        ),
    ] = None
    restarts_per_hour: Annotated[
        int,
        typer.Option(
            "--restarts-per-hour", metavar="N", min=1, help=t("With --max-restarts: at most so many within an hour.")
        ),
    ] = 10
    spares: Annotated[
        bool,
        typer.Option(
            "--spares",
            help=t(
                "With --max-restarts: a process per rank waits with all imports done, so that a restart is quicker."
            ),
        ),
    ] = False
    auto_batch: Annotated[
        bool,
        typer.Option(
            "--auto-batch",
            help=t("On out of memory: halve the micro-batch and double the accumulation; the real batch stays."),
        ),
    ] = False
    debug: Annotated[
        str,
        typer.Option(
            "--debug",
            metavar="[RANK|all]",
            help=t(
                "Rank 0, the one named, several (0,2) or all wait for a "
                "debugger; the others wait for them, however long."
            ),
        ),
    ] = ""
    on_hang: Annotated[
        str | None,
        typer.Option(
            "--on-hang",
            metavar="wait|stop",
            help=t(
                "When no progress comes: only say where each rank is, or also end the run, exit code 124 "
                "(else by the plan)."
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
                "Seconds of silence that count as a hang (0: learned from the run, at least 300; else by the plan)."
            ),
        ),
    ] = None
    apply_fix: Annotated[
        bool,
        typer.Option(
            "--apply-fix",
            help=t("Change the plan as the newest run's failure asks, show the change, and launch again."),
        ),
    ] = False
    machine: Annotated[
        str, typer.Option("--machine", metavar="FILE", help=t("With --dry-run: a machine from a file."))
    ] = ""
    machine_rank: Annotated[
        int | None,
        typer.Option(
            "--machine-rank",
            metavar="N",
            help=t("Of several machines: which one this is, from 0 (Slurm says it, too)."),
        ),
    ] = None
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="S", min=0.1, help=t("Of several machines: seconds to wait for the others.")),
    ] = 30.0
    config: Annotated[
        str,
        typer.Option(
            "--config",
            metavar="FILE",
            help=t("Launch SCRIPT [ARGS] by an accelerate configuration, without a project."),
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
