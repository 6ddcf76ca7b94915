"""What was asked of `trainwiz submit`."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import say
from trainwiz.workflows.option import argument, flag, option


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `trainwiz submit`. What is empty was not typed."""

    folder: str = argument("[DIR]", say("Project folder (default: the current folder)."), ".")
    dry_run: bool = flag(say("Show the file and the commands; submit and write nothing."))
    json: bool = flag(say("Print the job as JSON; with --dry-run, what would be done."))
    ignore: tuple[str, ...] = option("PREFIX", say("Ignore rules whose id starts with this; repeatable."))
