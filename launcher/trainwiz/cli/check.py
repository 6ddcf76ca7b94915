"""`trainwiz check`: the rules alone, on projects, plans, and files that trainwiz did not write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainwiz.language import t

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainwiz.finding import Finding
    from trainwiz.workflows.check.configurations import Files

FORMATS = ("text", "json", "sarif", "github")
HERE = "here"
"""Plans are judged for this machine unless another one is named; files only if it is."""


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH…]",
            help=t("Projects, plans, files of accelerate or DeepSpeed, or folders with some; default: here."),
        ),
    ] = None,
    json: bool = typer.Option(False, "--json", help=t("The findings as JSON.")),
    format: str = typer.Option("", "--format", metavar="FORMAT", help=t("text, json, sarif or github.")),
    machine: str = typer.Option(
        "",
        "--machine",
        metavar="FILE",
        help=t("Judge for the machine in this file; the word here judges files for this one, too."),
    ),
    python: str = typer.Option("", "--python", metavar="PATH", help=t("The interpreter that will train.")),
    script: str = typer.Option("", "--script", metavar="SCRIPT.py", help=t("The script that the files are for.")),
    model: str = typer.Option(
        "", "--model", metavar="NAME", help=t("The model that the files are for: a preset, a folder or a hub id.")
    ),
    default: bool = typer.Option(False, "--default", help=t("Check the file that accelerate takes by default.")),
    engine_version: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-version",
            metavar="ENGINE=VERSION",
            help=t("Judge files for this version, like deepspeed=0.16.5; repeatable."),
        ),
    ] = None,
    skip_others: bool = typer.Option(
        False, "--skip-others", help=t("Pass by files that are none of these, for a pre-commit hook.")
    ),
    fix: bool = typer.Option(
        False, "--fix", help=t("Mend plans, and files of accelerate and DeepSpeed; the diff comes first.")
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help=t("With --fix: write without asking.")),
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="ID", help=t("Only this rule, or all that begin with this; repeatable.")),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="ID", help=t("Leave out a rule, or all that begin with this (TW3); repeatable.")
        ),
    ] = None,
) -> int:
    """Exit 1 on a finding of level error."""
    from trainwiz.finding import errors
    from trainwiz.rules import selection
    from trainwiz.workflows.check import configurations
    from trainwiz.workflows.check import targets as sorting

    shape = _shape(format, json)
    only, left_out = selection.prefixes(select or ()), selection.prefixes(ignore or ())
    sorted_targets = sorting.sort(targets or ([] if default else ["."]), default=default, skip_others=skip_others)

    def judge() -> dict[str, tuple[Finding, ...]]:
        return {target: _of_plan(target, machine, python, only, left_out) for target in sorted_targets.plans}

    plans = judge()
    versions = configurations.engine_versions(engine_version or ())
    files = configurations.load(
        sorted_targets.files, script=script or None, versions=versions, model=model or None, here=machine == HERE
    )
    if fix:
        files, written = _mend(plans, files, only, left_out, confirmed=yes)
        plans = judge() if written and plans else plans
    found = [finding for each in plans.values() for finding in each]
    in_files = files.findings(only, left_out)
    lines = {path: document.text.splitlines() for path, document in files.documents.items()}
    _show(found, in_files, shape, lines)
    return 1 if errors([*found, *in_files]) else 0


def _shape(format: str, as_json: bool) -> str:
    from trainwiz.errors import UsageError
    from trainwiz.message import say

    shape = format or ("json" if as_json else "text")
    if shape not in FORMATS or (as_json and shape != "json"):
        raise UsageError(say("--format is {format}; it may be {choices}", format=shape, choices=", ".join(FORMATS)))
    return shape


def _mend(
    plans: Mapping[str, Sequence[Finding]],
    files: Files,
    only: Sequence[str],
    left_out: Sequence[str],
    *,
    confirmed: bool,
) -> tuple[Files, bool]:
    """The files as they are afterwards, and whether anything was written."""
    from trainwiz.store import plans as store
    from trainwiz.workflows.check import fixes

    after = fixes.mended(files, only, left_out)
    before_texts = {path: document.text for path, document in files.documents.items()}
    after_texts = {path: document.text for path, document in after.documents.items()}
    for target, found in plans.items():
        path = str(store.find(target))
        before_texts[path], after_texts[path] = fixes.mended_plan(path, found)
    written = fixes.apply(before_texts, after_texts, confirmed=confirmed)
    return (after, True) if written else (files, False)


def _of_plan(
    target: str, machine: str, python: str, only: Sequence[str], left_out: Sequence[str]
) -> tuple[Finding, ...]:
    from trainwiz import rules
    from trainwiz.store import plans
    from trainwiz.workflows import facts

    path = plans.find(target)
    plan = plans.read(path)
    folder = str(path.parent)
    several = plan.machine.num_machines > 1
    other = None if machine in ("", HERE) else machine
    here = facts.machine(machine_file=other, python=python or None, folder=folder, interfaces=several)
    chosen = [rule for rule in rules.of_plans() if rule.id.startswith(tuple(only) or ("TW",))]
    return rules.check(facts.gather(plan, folder, here), rules=chosen, ignore=left_out)


def _show(of_plans: Sequence[Finding], in_files: Sequence[Finding], shape: str, lines: dict[str, list[str]]) -> None:
    from trainwiz import rules
    from trainwiz.ui import annotations, console, source
    from trainwiz.ui import findings as shown

    everything = [*of_plans, *in_files]
    if shape == "json":
        console.data_json(shown.to_dict(everything))
    elif shape == "sarif":
        console.data_json(annotations.sarif(everything, rules.load()))
    elif shape == "github":
        for line in annotations.github(everything):
            console.data(line)
    elif in_files:
        shown.show_each(of_plans, as_data=True)
        source.show(in_files, lines)
    else:
        shown.show(of_plans, as_data=True)
