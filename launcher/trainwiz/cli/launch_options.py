"""The options of `trainwiz launch`, as typer shows and reads them."""

from __future__ import annotations

from typing import Annotated

import typer

from trainwiz.language import t

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIR] [-- ARGS]",
        help=t("The project (default: here) and arguments for its script; with --config: SCRIPT [ARGS]."),
    ),
]
Resume = Annotated[
    str,
    typer.Option(
        "--resume", metavar="[RUN]", help=t("Continue the newest run, or the one named, from its last checkpoint.")
    ),
]
New = Annotated[bool, typer.Option("--new", help=t("Start anew, also where the newest run was preempted."))]
DryRun = Annotated[bool, typer.Option("--dry-run", help=t("Show what would be done; start and write nothing."))]
Json = Annotated[bool, typer.Option("--json", help=t("With --dry-run: as JSON."))]
Python = Annotated[str, typer.Option("--python", metavar="PATH", help=t("The Python that runs the training."))]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="PREFIX", help=t("Leave out rules whose id starts so; may be given repeatedly.")),
]
Grace = Annotated[
    float,
    typer.Option("--grace", metavar="S", min=0.0, help=t("After Ctrl-C: seconds that the ranks get to save and end.")),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option(
        "--max-restarts",
        metavar="N",
        min=0,
        help=t("After a failure that may pass: go on from the newest checkpoint, at most N times (else by the plan)."),
    ),
]
RestartsPerHour = Annotated[
    int,
    typer.Option(
        "--restarts-per-hour", metavar="N", min=1, help=t("With --max-restarts: at most so many within an hour.")
    ),
]
Spares = Annotated[
    bool,
    typer.Option(
        "--spares",
        help=t("With --max-restarts: a process per rank waits with all imports done, so that a restart is quicker."),
    ),
]
AutoBatch = Annotated[
    bool,
    typer.Option(
        "--auto-batch",
        help=t("On out of memory: halve the micro-batch and double the accumulation; the real batch stays."),
    ),
]
Debug = Annotated[
    str,
    typer.Option(
        "--debug",
        metavar="[RANK|all]",
        help=t(
            "Rank 0, the one named, several (0,2) or all wait for a debugger; the others wait for them, however long."
        ),
    ),
]
OnHang = Annotated[
    str | None,
    typer.Option(
        "--on-hang",
        metavar="wait|stop",
        help=t(
            "When no progress comes: only say where each rank is, or also end the run, exit code 124 "
            "(else by the plan)."
        ),
    ),
]
HangLimit = Annotated[
    float | None,
    typer.Option(
        "--hang-limit",
        metavar="S",
        min=0.0,
        help=t("Seconds of silence that count as a hang (0: learned from the run, at least 300; else by the plan)."),
    ),
]
ApplyFix = Annotated[
    bool,
    typer.Option(
        "--apply-fix", help=t("Change the plan as the newest run's failure asks, show the change, and launch again.")
    ),
]
Machine = Annotated[str, typer.Option("--machine", metavar="FILE", help=t("With --dry-run: a machine from a file."))]
MachineRank = Annotated[
    int | None,
    typer.Option(
        "--machine-rank", metavar="N", help=t("Of several machines: which one this is, from 0 (Slurm says it, too).")
    ),
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="S", min=0.1, help=t("Of several machines: seconds to wait for the others."))
]
Config = Annotated[
    str,
    typer.Option(
        "--config", metavar="FILE", help=t("Launch SCRIPT [ARGS] by an accelerate configuration, without a project.")
    ),
]
