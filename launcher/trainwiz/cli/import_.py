"""`trainwiz import`: the options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trainwiz.language import t


def import_(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE…", help=t("An accelerate YAML, a DeepSpeed JSON, or one of each.")),
    ] = None,
    into: str = typer.Option(".", "--into", metavar="DIR", help=t("The project's folder; made where it is missing.")),
    default: bool = typer.Option(False, "--default", help=t("Import the file that accelerate takes by default.")),
    script: str = typer.Option(
        "", "--script", metavar="SCRIPT.py", help=t("The script that the files are for: what they leave to it is read.")
    ),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=t("Set any key of the plan; stronger than the files.")),
    ] = None,
    machine: str = typer.Option("", "--machine", metavar="FILE", help=t("Plan for the machine in this file.")),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The Python that will run the training.")),
    engine_version: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-version",
            metavar="ENGINE=VERSION",
            help=t("Read files as this version does, like deepspeed=0.16.5; repeatable."),
        ),
    ] = None,
    dry_run: bool = typer.Option(False, "--dry-run", help=t("Show the plan; write nothing.")),
    json: bool = typer.Option(False, "--json", help=t("The plan, and what does not fit, as JSON.")),
    yes: bool = typer.Option(False, "--yes", "-y", help=t("Never ask; files of yours are left alone.")),
    force: bool = typer.Option(False, "--force", help=t("Overwrite files of yours, after showing the difference.")),
    on_conflict: str = typer.Option(
        "", "--on-conflict", metavar="WAY", help=t("For files of yours: keep, overwrite or beside (as .new).")
    ),
) -> None:
    """What does not fit a plan is listed with its line; nothing is dropped silently."""
    from trainwiz.workflows.create import import_

    import_.run(
        import_.Request(
            files=files or (),
            default=default,
            script=script or None,
            folder=Path(os.path.expanduser(into)),
            assignments=set_ or (),
            machine_file=machine or None,
            python=python or None,
            versions=engine_version or (),
            force=force,
            on_conflict=on_conflict or None,
            write=not dry_run,
            as_json=json,
            yes=yes,
        )
    )
