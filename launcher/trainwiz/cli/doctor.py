"""`trainwiz doctor`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def doctor(
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Folder in which the training will run.")),
    as_json: bool = typer.Option(False, "--json", help=t("Print the machine and the verdicts as JSON.")),
    machine_file: str = typer.Option(
        "", "--machine", metavar="FILE", help=t("Check the machine described in FILE, or named by its GPUs: 8xH100.")
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("Python interpreter used for the training.")),
    comm: bool = typer.Option(False, "--comm", help=t("Also run a real all-reduce across the planned ranks.")),
) -> int:
    """Exit 1 if anything would stop a training."""
    from trainwiz.workflows import doctor

    return doctor.examine(
        folder, machine_file=machine_file or None, python=python or None, with_all_reduce=comm, as_json=as_json
    )
