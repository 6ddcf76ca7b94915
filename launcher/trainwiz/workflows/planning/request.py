"""What was asked of `trainwiz plan`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from trainwiz import vocabulary
from trainwiz.message import say
from trainwiz.workflows.option import argument, flag, option


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The command line of `trainwiz plan`. What is empty was not typed."""

    place: str = argument("[DIR]", say("A project to start from (default: the current folder)."), ".")
    model: str = option("NAME", say("A hub id, a folder or a preset; its size is found without downloading weights."))
    task: str = option(
        "TASK",
        say("One of: {tasks}.", tasks=", ".join(get_args(vocabulary.Task))),
    )
    adapter: str = option(
        "NAME",
        say("What is trained: lora or qlora, an adapter; none or full, all weights."),
        names="--adapter --method",
    )
    gpus: str = option(
        "NxNAME",
        say(
            "GPUs to plan for, like 8xH100, 16xA100-80GB or 2x8xH100 (default: those of this machine; without any, "
            "those that the project was made for)."
        ),
    )
    machine: str = option("FILE", say("Plan for the machine described in FILE, as `trainwiz doctor --json` prints it."))
    strategy: str = option("NAME", say("Show this strategy only, like zero3 or zero2+offload."))
    sequence_length: str = option("N", say("Tokens per sample."))
    real_batch_size: str = option("N", say("Samples per optimizer update."))
    steps: str = option("N", say("Training length in optimizer updates."))
    tokens: str = option("N", say("Training length in tokens, like 500M or 1.5B; overrides the number of updates."))
    assignments: tuple[str, ...] = option(
        "KEY=VALUE", say("Set any key of the plan (`trainwiz explain keys` lists them); repeatable."), names="--set"
    )
    over: str = option("gpus=N,N,…", say("Show the best row for each number of GPUs, like gpus=1,2,4,8,16."))
    target: str = option("TIME", say("Show only what finishes in this time, like 12h or 3d."))
    price: str = option(
        "PRICE",
        say(
            "Price of one GPU for one hour, in any currency; shows the cost. It is saved for these GPUs; none "
            "forgets it."
        ),
    )
    max_cost: str = option("COST", say("Show only what costs no more than this; needs --price."))
    pick: str = option("ROW", say("Write the project with this row's settings, as `trainwiz init` does."))
    json: bool = flag(say("Print the rows as JSON."))
    html: str = option("FILE", say("Write one HTML page: memory over an update, and time against memory."))
    exact: bool = flag(
        say("Run one update of the project's own code on tensors without memory, and show what its peak consists of.")
    )
    python: str = option("PATH", say("With --exact: the Python that trains (default: the one that runs trainwiz)."))
    calibration: bool = flag(
        say("Show how accurate the forecasts were for this machine's runs; they correct future forecasts.")
    )
    forget: bool = flag(say("With --calibration: delete the corrections from these runs."))
    yes: bool = flag(say("With --pick: write without showing the review first."), "--yes -y")

    @property
    def folder(self) -> Path:
        """The project's folder; may be missing."""
        return Path(os.path.expanduser(self.place))
