"""The proof of an update: a project before and after it, trained small on CPU ranks, and compared."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.probe import host, interpreter
from trainwiz.probe import rehearsal as programs
from trainwiz.rehearsal import equivalence, setup
from trainwiz.rehearsal.check import Check
from trainwiz.rehearsal.equivalence import Change
from trainwiz.rehearsal.setup import Setup
from trainwiz.shell_words import quoted
from trainwiz.store import rehearsals
from trainwiz.store.rehearsals import Workspace
from trainwiz.ui import console
from trainwiz.workflows import project_copy
from trainwiz.workflows.launch import ops
from trainwiz.workflows.rehearse import rehearsal, trial_run
from trainwiz.workflows.rehearse.trial_run import Environment

_UPDATES = 6


@dataclass(frozen=True, kw_only=True)
class Version:
    """A project at one time."""

    plan: Plan
    """Its plan."""
    texts: Mapping[str, str]
    """The files that differ from those in the folder, by path; none: the folder as it is."""


def prove(folder: Path, before: Version, after: Version, changed: Change, python: str) -> Check:
    """Train both on CPU ranks, and compare losses and gradients. Nothing in the folder changes."""
    for version in (before, after):
        if obstacle := setup.obstacle(version.plan):
            return _skipped(obstacle)
    workspace = Workspace(None)
    try:
        found = _proved(folder, workspace, before, after, changed, python)
        workspace.kept = found.verdict == "failed" and workspace.has_runs
        return found
    finally:
        workspace.remove()
        if workspace.kept:
            console.talk(t("logs, metrics and checkpoints of the runs: {folder}", folder=workspace.folder))


def _proved(folder: Path, workspace: Workspace, before: Version, after: Version, changed: Change, python: str) -> Check:
    new = workspace.folder / "project"
    project_copy.lay_out(folder.absolute(), new, after.texts)
    base = Environment(
        folder=folder.absolute(),
        python=interpreter.located(python or sys.executable),
        workspace=workspace,
        machine=host.host(str(folder), interfaces=False),
    )
    environments = (base, dataclasses.replace(base, folder=new))
    fields = [setup.declared_fields(rehearsals.sources(each.folder)) for each in environments]
    smalls = [
        setup.small_copy(version.plan, declared, by_hand={}, updates=_UPDATES)
        for version, declared in zip((before, after), fields, strict=True)
    ]
    cut, _ = rehearsals.first_parts(base.folder, fields[0], workspace.place("data"))
    model, problem = rehearsal.small_model(base, smalls[0], fields[0])
    if problem:
        return problem
    shared = {**cut, **model}
    seen, values = rehearsal.look(base, smalls[0], fields[0], {**smalls[0].values, **shared}, {}, 1.0)
    shared |= {name: values[name] for name in ("sequence_length",) if name in values}
    if "length" not in seen:
        return _skipped(say("task.py itself does not work; run: trainwiz rehearse {folder}", folder=quoted(folder)))
    one, other = (
        _with(small, {**small.values, **shared}, declared, seen) for small, declared in zip(smalls, fields, strict=True)
    )
    planned = equivalence.runs(one, other, changed)
    for small in smalls:  # within the ranks it would be taken for a hang
        ops.build(small.plan, python=base.python, machine=base.machine, added=programs.CPU_ONLY)
    results = []
    for number, (environment, small, run) in enumerate(zip(environments, (one, other), planned, strict=True), start=1):
        values = {"number": number, "of": len(planned), "what": text(run.title), "world": run.split.world}
        console.talk(t("run {number} of {of}: {what}, ranks: {world} …", **values), style="dim")
        results.append(trial_run.train(environment, small, run))
        if not results[-1].succeeded:
            break
    return equivalence.check(results[0], results[-1], (one, other))


def _with(small: Setup, values: Mapping[str, Any], fields: Mapping[str, Any], seen: Mapping[str, Any]) -> Setup:
    return dataclasses.replace(
        small,
        values={name: value for name, value in values.items() if name in fields},
        samples=min(small.samples, seen["length"]),
        random_loss=bool(seen.get("loss", {}).get("random")),
    )


def _skipped(why: Message) -> Check:
    return Check(name="proof", title=say("proof"), verdict="skipped", found=why)
