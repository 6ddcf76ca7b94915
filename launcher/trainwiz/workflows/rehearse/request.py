"""What was asked of `trainwiz rehearse`."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import say
from trainwiz.workflows.option import argument, flag, option


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `trainwiz rehearse`. What is empty was not typed."""

    folder: str = argument("[DIR] [-- ARGS]", say("The project, and values for settings of its script."), ".")
    arguments: tuple[str, ...] = ()
    """The script's own settings, as `--name value` or `--name=value`."""
    updates: int = option("N", say("Updates per run."), 6, min=4)
    task_only: bool = flag(say("Only check task.py and the schedule; do not train."), "--task")
    json: bool = flag(say("Print the report card as JSON."))
    python: str = option("PATH", say("Python interpreter that runs the training."))
    keep: str = option("FOLDER", say("Keep the logs, metrics and checkpoints of the runs in FOLDER."))
