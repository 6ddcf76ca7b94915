"""`trainwiz check`: the rules alone, on a project or a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from trainwiz.language import t


def check(
    target: str = typer.Argument(".", metavar="[DIR|FILE]", help=t("A project's folder, or a trainwiz.yaml.")),
    json: bool = typer.Option(False, "--json", help=t("The findings as JSON.")),
    machine: str = typer.Option(
        "", "--machine", metavar="FILE", help=t("Judge for this machine, not for the one here.")
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The interpreter that will train.")),
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="ID", help=t("Leave out a rule, or all that begin with this (TW3); repeatable.")
        ),
    ] = None,
) -> int:
    """Exit 1 on a finding of level error."""
    from trainwiz import findings, rules
    from trainwiz.cli import facts, rule_ids
    from trainwiz.store import plans
    from trainwiz.ui import console
    from trainwiz.ui import findings as shown

    left_out = rule_ids.prefixes(ignore or ())
    path = plans.find(target)
    plan = plans.read(path)
    folder = str(path.parent)
    here = facts.machine(machine_file=machine or None, python=python or None, folder=folder)
    found = findings.check(facts.gather(plan, folder, here), rules=rules.load(), ignore=left_out)
    if json:
        console.data_json(shown.to_dict(found))
    else:
        shown.show(found, as_data=True)
    return 1 if findings.errors(found) else 0
