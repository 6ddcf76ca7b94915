"""What was asked of `trainwiz check`."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import say
from trainwiz.workflows.option import argument, flag, option


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `trainwiz check`. What is empty was not typed."""

    targets: tuple[str, ...] = argument(
        "[PATH…]",
        say(
            "Projects, plans, files of accelerate, DeepSpeed or a training tool, or folders that contain them "
            "(default: the current folder)."
        ),
    )
    json: bool = flag(say("Print the findings as JSON."))
    format: str = option("FORMAT", say("text, json, sarif or github."))
    machine: str = option(
        "FILE",
        say(
            "Check against the machine described in FILE; `here` also checks accelerate and DeepSpeed files "
            "against this machine."
        ),
    )
    python: str = option(
        "PATH", say("Python interpreter used for the training; its versions of DeepSpeed and accelerate apply.")
    )
    script: str = option("SCRIPT.py", say("The script that the files are for."))
    model: str = option("NAME", say("The model that the files are for: a preset, a folder or a hub id."))
    default: bool = flag(say("Check accelerate's default config file."))
    engine_version: tuple[str, ...] = option(
        "ENGINE=VERSION", say("Check files for this version, like deepspeed=0.16.5; repeatable.")
    )
    skip_others: bool = flag(say("Skip files of other kinds, for a pre-commit hook."))
    fix: bool = flag(say("Fix whatever needs no decision from you in plans and files; the diff is shown first."))
    unsafe_fixes: bool = flag(say("With --fix: also make changes that may change what is trained."))
    yes: bool = flag(say("With --fix: write without asking."), "--yes -y")
    select: tuple[str, ...] = option(
        "ID", say("Use only this rule, or all rules whose id starts with this; repeatable.")
    )
    ignore: tuple[str, ...] = option(
        "ID", say("Ignore a rule, or all rules whose id starts with this (TW3); repeatable.")
    )
