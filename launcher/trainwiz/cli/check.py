"""`trainwiz check`: the rules alone, on projects, plans, and files that trainwiz did not write."""

from __future__ import annotations

from typing import Annotated

import typer

from trainwiz.language import t


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH…]",
            help=t(
                "Projects, plans, accelerate or DeepSpeed files, or folders that contain them (default: the "
                "current folder)."
            ),
        ),
    ] = None,
    json: bool = typer.Option(False, "--json", help=t("Print the findings as JSON.")),
    format: str = typer.Option("", "--format", metavar="FORMAT", help=t("text, json, sarif or github.")),
    machine: str = typer.Option(
        "",
        "--machine",
        metavar="FILE",
        help=t(
            "Check against the machine described in FILE; `here` checks accelerate and DeepSpeed files against "
            "this machine, too."
        ),
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("Python interpreter used for the training.")),
    script: str = typer.Option("", "--script", metavar="SCRIPT.py", help=t("The script the files are for.")),
    model: str = typer.Option(
        "", "--model", metavar="NAME", help=t("The model the files are for: a preset, a folder or a hub id.")
    ),
    default: bool = typer.Option(False, "--default", help=t("Check accelerate's default config file.")),
    engine_version: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-version",
            metavar="ENGINE=VERSION",
            help=t("Check files for this version, like deepspeed=0.16.5; repeatable."),
        ),
    ] = None,
    skip_others: bool = typer.Option(
        False, "--skip-others", help=t("Skip files of any other kind, for a pre-commit hook.")
    ),
    fix: bool = typer.Option(
        False, "--fix", help=t("Fix plans, and accelerate and DeepSpeed files; the diff is shown first.")
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help=t("With --fix: write without asking.")),
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="ID", help=t("Use only this rule, or all rules whose id starts with this; repeatable.")
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="ID", help=t("Ignore a rule, or all rules whose id starts with this (TW3); repeatable.")
        ),
    ] = None,
) -> int:
    """Exit 1 on a finding of level error."""
    from trainwiz.workflows.check import check as workflow

    options = workflow.Options(
        targets=targets or (),
        default=default,
        skip_others=skip_others,
        machine=machine,
        python=python,
        script=script,
        model=model,
        engine_versions=engine_version or (),
        select=select or (),
        ignore=ignore or (),
        fix=fix,
        confirmed=yes,
        format=format,
        json=json,
    )
    return workflow.check(options)
