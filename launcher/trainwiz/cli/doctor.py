"""`trainwiz doctor`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def doctor(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Where the training would run.")),
    as_json: bool = typer.Option(False, "--json", help=t("The machine and the verdicts as JSON.")),
    machine_file: str = typer.Option(
        "", "--machine", metavar="FILE", help=t("Judge the machine that a file of `doctor --json` describes.")
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The interpreter that will train.")),
    comm: bool = typer.Option(False, "--comm", help=t("Also run a real all-reduce over the planned ranks.")),
) -> int:
    """Exit 1 if anything would stop a training."""
    from trainwiz.workflows import doctor

    return doctor.examine(
        folder, machine_file=machine_file or None, python=python or None, with_all_reduce=comm, as_json=as_json
    )
