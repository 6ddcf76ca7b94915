"""The options of a command that every machine of several is given: they stand once, for all such commands."""

from __future__ import annotations

from typing import Any

from trainwiz.message import say
from trainwiz.workflows.option import option


def machine_rank() -> Any:
    """`--machine-rank`: None where it was not typed."""
    return option(
        "N", say("With several machines: the rank of this machine, from 0 (read from Slurm under srun)."), None
    )


def wait() -> Any:
    """`--wait`: seconds; None where it was not typed."""
    return option(
        "S",
        say("With several machines: seconds to wait for the others (default: 30; in a scheduler's job 600)."),
        None,
        min=0.1,
    )


def secret() -> Any:
    """`--secret`: empty where it was not typed."""
    return option(
        "WORDS",
        say(
            "With several machines without a shared folder: a secret given to all of them (or TRAINWIZ_SECRET; "
            "default: machine 0 creates one and shows it)."
        ),
    )
