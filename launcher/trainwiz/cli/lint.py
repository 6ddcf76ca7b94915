"""`trainwiz lint`: a person's own training script, judged by its text."""

from __future__ import annotations

from typing import Annotated

import typer

from trainwiz.language import t


def lint(
    scripts: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT.py…", help=t("Training scripts; they are read, never run."))
    ] = None,
    json: bool = typer.Option(False, "--json", help=t("Print the findings as JSON.")),
    format: str = typer.Option("", "--format", metavar="FORMAT", help=t("text, json, sarif or github.")),
    fix: bool = typer.Option(
        False, "--fix", help=t("Make the changes that need no decision from you; show them as a diff first.")
    ),
    yes: bool = typer.Option(False, "--yes", help=t("Write the changes of --fix without asking.")),
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            metavar="ID",
            help=t("Use only this rule, or all rules whose id starts with this (TW70); repeatable."),
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="ID", help=t("Ignore a rule, or all rules whose id starts with this (TW3); repeatable.")
        ),
    ] = None,
) -> int:
    """Exit 1 on a finding of level error. `# trainwiz: ignore[TW703]` on a line leaves it out there."""
    from trainwiz.workflows.check import lint as workflow

    return workflow.lint(
        scripts or (), select=select or (), ignore=ignore or (), format=format, json=json, fix=fix, yes=yes
    )
