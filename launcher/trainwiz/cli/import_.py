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
        typer.Argument(metavar="FILE…", help=t("An accelerate YAML file, a DeepSpeed JSON file, or one of each.")),
    ] = None,
    into: str = typer.Option(".", "--into", metavar="DIR", help=t("Project folder; created if missing.")),
    default: bool = typer.Option(False, "--default", help=t("Import accelerate's default config file.")),
    script: str = typer.Option(
        "",
        "--script",
        metavar="SCRIPT.py",
        help=t("The script the files are for; settings that the files leave to it are read from it."),
    ),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=t("Set any key of the plan; overrides the files.")),
    ] = None,
    machine: str = typer.Option("", "--machine", metavar="FILE", help=t("Plan for the machine described in FILE.")),
    python: str = typer.Option(
        "", "--python", metavar="PATH", help=t("Python interpreter that will run the training.")
    ),
    engine_version: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-version",
            metavar="ENGINE=VERSION",
            help=t("Read files as this version does, like deepspeed=0.16.5; repeatable."),
        ),
    ] = None,
    dry_run: bool = typer.Option(False, "--dry-run", help=t("Show the plan; write nothing.")),
    json: bool = typer.Option(False, "--json", help=t("Print the plan, and what does not fit, as JSON.")),
    yes: bool = typer.Option(False, "--yes", "-y", help=t("Never ask; keep files of yours unchanged.")),
    force: bool = typer.Option(False, "--force", help=t("Overwrite files of yours, after showing the diff.")),
    on_conflict: str = typer.Option(
        "",
        "--on-conflict",
        metavar="WAY",
        help=t("What to do with files of yours: keep, overwrite or beside (write .new files)."),
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
