"""The commands on runs: runs, checkpoints, export, logs, watch, report, share, stop, diff, diagnose."""

from __future__ import annotations

from typing import Annotated

import typer

from trainwiz.language import t

_NEWEST = -1
_SHOWN = 50
_TARGET = typer.Argument(
    "latest", metavar="[RUN]", help=t("Name or folder of a run, or a project folder (default: the newest run here).")
)
_RUN = typer.Option("", "--run", metavar="RUN", help=t("Which run (default: the newest)."))
_CHECKPOINTS = typer.Argument(
    ".", metavar="[DIR]", help=t("A project, a run folder or a checkpoint folder (default: the current folder).")
)


def runs(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Project folder (default: the current folder).")),
    json: bool = typer.Option(False, "--json", help=t("Print the runs as JSON.")),
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=t("Only runs in this state: queued, running, done, failed, stopped, …; repeatable."),
        ),
    ] = None,
    since: str = typer.Option("", "--since", metavar="AGE", help=t("Only runs from the last 30m, 12h, 7d or 2w.")),
    before: str = typer.Option("", "--before", metavar="AGE", help=t("Only runs older than this.")),
    last: int = typer.Option(_SHOWN, "--last", metavar="N", min=0, help=t("Show only the N newest runs (0: all).")),
    prune: bool = typer.Option(
        False, "--prune", help=t("Show which of these runs would be removed; with --yes, remove them.")
    ),
    yes: bool = typer.Option(False, "--yes", help=t("With --prune: remove them.")),
) -> int:
    """List the runs of a project, the oldest first."""
    from trainwiz.workflows import runs

    if prune:
        removable = runs.Chosen(states=state or (), since=since, before=before)
        return runs.prune(folder, chosen=removable, confirmed=yes, as_json=json)
    most = 0 if json and last == _SHOWN else last
    runs.show(folder, chosen=runs.Chosen(states=state or (), since=since, before=before, most=most), as_json=json)
    return 0


def checkpoints(
    folder: str = _CHECKPOINTS,
    quick: bool = typer.Option(
        False, "--quick", help=t("Do not read the files; do not report whether they are valid.")
    ),
    json: bool = typer.Option(False, "--json", help=t("Print the checkpoints as JSON.")),
) -> int:
    """List all checkpoints by update; the exit code is 1 if a complete one is damaged."""
    from trainwiz.workflows import checkpoints

    return checkpoints.show(folder, quick=quick, as_json=json)


def export(
    folder: str = _CHECKPOINTS,
    update: int = typer.Option(
        _NEWEST, "--checkpoint", metavar="N", help=t("Update whose checkpoint to export (default: the newest).")
    ),
    output: str = typer.Option(
        "", "--output", metavar="DIR", help=t("Output folder (default: exported/ in the project).")
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("Python interpreter that runs the training.")),
    last_weights: bool = typer.Option(
        False, "--last-weights", help=t("Write the last weights, not their average (optimizer.ema_decay).")
    ),
    gguf: str = typer.Option(
        "", "--gguf", metavar="TYPE", help=t("Also write a GGUF file with llama.cpp's converter: auto, bf16, q8_0, …")
    ),
    push: str = typer.Option(
        "",
        "--push",
        metavar="ORG/NAME",
        help=t("Then upload the model to the Hugging Face hub; a new repository is private."),
    ),
    public: bool = typer.Option(False, "--public", help=t("With --push: make a new repository public.")),
    trust: bool = typer.Option(
        False, "--trust", help=t("Also load classes that are not known, which lets the checkpoint run any code.")
    ),
    json: bool = typer.Option(False, "--json", help=t("Print what was written as JSON.")),
) -> None:
    """Compare the checkpoint with its manifest, gather its weights, write them, and read them back."""
    from trainwiz.workflows.weights import export

    export.export(
        export.Request(
            folder=folder,
            update=None if update == _NEWEST else update,
            output=output or None,
            python=python or None,
            average=not last_weights,
            trust=trust,
            gguf=gguf or None,
            repository=push or None,
            public=public,
            json=json,
        )
    )


def logs(
    target: str = _TARGET,
    run: str = _RUN,
    rank: int = typer.Option(0, "--rank", metavar="N", min=0, help=t("Rank whose log to show.")),
    follow: bool = typer.Option(
        False, "--follow", "-f", help=t("Follow the log until the run ends; Ctrl-C leaves the run running.")
    ),
) -> int:
    """Show a rank's log on stdout, byte for byte."""
    from trainwiz.workflows import logs

    return logs.show(target, run or None, rank, follow=follow)


def watch(
    target: str = _TARGET,
    run: str = _RUN,
    json: bool = typer.Option(False, "--json", help=t("Print the current state as JSON.")),
) -> None:
    """Watch live on a terminal until the run ends or q is pressed; without one, print a snapshot."""
    from trainwiz.workflows import watch

    watch.watch(target, run or None, as_json=json)


def report(
    run: str = _TARGET,
    output: str = typer.Option(
        "", "--output", "-o", metavar="FILE", help=t("Output file (default: in the run folder).")
    ),
) -> None:
    """Write the page; its path goes to stdout."""
    from trainwiz.workflows import report

    report.write(run, output or None)


def stop(
    target: str = typer.Argument(
        "latest",
        metavar="[RUN]",
        help=t("Name or folder of a run, a job's id, or a project folder (default: the newest run here)."),
    ),
    run: str = typer.Option("", "--run", metavar="RUN", help=t("Which run or job (default: the newest).")),
) -> None:
    """Ask a run to save a checkpoint and end."""
    from trainwiz.workflows.jobs import stop

    stop.stop(target, run)


def share(run: str = _TARGET) -> None:
    """Models are named only if they are well known; no path, host, data or time is in the row."""
    from trainwiz.workflows import share

    share.share(run)


def diff(
    before: str = typer.Argument(..., metavar="RUN", help=t("A run's name or folder.")),
    after: str = typer.Argument("latest", metavar="[RUN]", help=t("Another run (default: the newest run here).")),
    json: bool = typer.Option(False, "--json", help=t("Print the differences as JSON.")),
) -> None:
    """Compare plan, versions, machine, code and result."""
    from trainwiz.workflows import diff

    diff.show(before, after, as_json=json)


def diagnose(
    target: str = typer.Argument(
        "latest",
        metavar="[LOG|RUN]",
        help=t("Log of any training (- reads from a pipe), or a run (default: the newest run)."),
    ),
    json: bool = typer.Option(False, "--json", help=t("Print the diagnosis as JSON.")),
) -> int:
    """Say which rank failed first, why, and what to type."""
    from trainwiz.workflows import diagnose

    return diagnose.diagnose(target, json=json)
