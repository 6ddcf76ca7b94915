"""A failed run's plan, changed as its diagnosis says: solved, checked by all rules, shown, written, launched again."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainwiz import plan as planning
from trainwiz import quantities, render, rules
from trainwiz.diagnose import Diagnosis
from trainwiz.diagnose.plan_changes import PlanChange, candidates
from trainwiz.errors import PlanError, Refused, TrainwizError, UsageError
from trainwiz.finding import errors
from trainwiz.language import current, spoken, t, text
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.outcome import Outcome
from trainwiz.plan import Plan
from trainwiz.shell_words import operand
from trainwiz.store import answers, artifacts, history, plans, runs, templates
from trainwiz.store.artifacts import Conflict
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui.diagnosis import Fix
from trainwiz.workflows import diagnose, facts, recorded_fix

if TYPE_CHECKING:
    from trainwiz.workflows.launch.prepared import Prepared
    from trainwiz.workflows.launch.request import Request


def solved(plan: Plan, folder: Path, machine: Machine, diagnosis: Diagnosis) -> tuple[PlanChange, Plan] | None:
    """The first change that the diagnosis suggests and no rule forbids, with the plan that it makes."""
    before = _errors(plan, folder, machine) if diagnosis.plan_change else set()
    for change in candidates(diagnosis.plan_change, plan):
        try:
            changed = planning.with_changes(plan, change.changes)
        except PlanError:
            continue
        if not _errors(changed, folder, machine) - before:
            return change, changed
    return None


def of_run(prepared: Prepared, diagnosis: Diagnosis) -> Fix | None:
    """The same for a run that failed, as the crash card shows it; None where the plan is not what ran."""
    plan = prepared.plan
    if plan is None or prepared.place or not diagnosis.plan_change:
        return None
    folder = console.near(Path(prepared.command.cwd))
    try:
        found = solved(plan, folder, prepared.machine, diagnosis)
    except TrainwizError:
        return None
    overridden = " ".join(prepared.request.arguments)
    if found is None or any(key.rpartition(".")[2] in overridden for key in found[0].changes):
        return None
    change, changed = found
    changes = {key: (plan.get(key), value) for key, value in change.changes.items()}
    saves = saved_memory(plan, changed, folder, prepared.machine)
    return Fix(changes=changes, why=change.why, line=recorded_fix.line(folder), saves=saves)


def saved_memory(plan: Plan, changed: Plan, folder: Path, machine: Machine) -> Message | None:
    """The forecast peak of a rank before and after a change that makes it smaller."""
    before, after = (facts.gather(each, str(folder), machine).estimate for each in (plan, changed))
    if before is None or after is None or after.peak_bytes_per_rank >= before.peak_bytes_per_rank:
        return None
    peaks = {
        "before": quantities.size(before.peak_bytes_per_rank),
        "after": quantities.size(after.peak_bytes_per_rank),
    }
    if plan.machine.device == "cpu" or not machine.gpus:
        return say("forecast peak of each rank: {before}; with this change {after}", **peaks)
    memory = quantities.size(min(gpu.memory_bytes for gpu in machine.gpus))
    return say("forecast peak of each rank: {before}; with this change {after}, of {memory}", memory=memory, **peaks)


# docs/decisions/diagnosis.md: `--apply-fix` edits the plan in place
def apply(request: Request) -> Request | None:
    """Change the plan as the newest run's failure asks, and return how to launch it; None after --dry-run.

    Raises `UsageError` if there is nothing to fix, and `Refused` if files hold a user's edits.
    """
    plan_file = plans.find(request.folder)
    plan, folder = plans.read(plan_file), plan_file.parent
    if plan.machine.num_machines > 1:
        raise UsageError(
            say(
                "--apply-fix only changes files on one machine, but this plan has {n} machines",
                n=plan.machine.num_machines,
            ),
            say("run trainwiz diagnose to see what to change; make the change on each machine with trainwiz init"),
        )
    run, diagnosis = _newest_failure(folder)
    machine = facts.machine(machine_file=None, python=request.python, folder=str(folder))
    found = solved(plan, folder, machine, diagnosis)
    if found is None:
        raise TrainwizError(
            say(
                "run {name} failed, and no change to the plan can fix it: {cause}", name=run.name, cause=diagnosis.cause
            ),
            diagnosis.remedy,
        )
    change, changed = found
    console.talk(t("run {name}: {cause}; {why}", name=run.name, cause=text(diagnosis.cause), why=text(change.why)))
    _write(plan_file, plan, changed, change, dry_run=request.dry_run)
    if request.dry_run:
        return None
    return dataclasses.replace(request, resume=request.resume or (run.name if run.checkpoint() else ""))


def _launch(folder: Path) -> str:
    return shlex.join(["trainwiz", "launch", *([] if folder == Path() else [operand(folder)])])


def _newest_failure(folder: Path) -> tuple[Run, Diagnosis]:
    made = runs.every(folder)
    if not made:
        raise UsageError(
            say("no runs in {folder}", folder=folder.absolute()), say("start a run: {command}", command=_launch(folder))
        )
    run = made[-1]
    outcome = Outcome.of_record(run.read("outcome"))
    if outcome is None and history.read(run).alive:
        raise UsageError(say("run {name} is still running", name=run.name))
    found = diagnose.of_run(run, outcome)[0] if outcome is None or outcome.exit_code else None
    if found is None:
        raise UsageError(
            say("the newest run, {name}, did not fail; nothing to fix", name=run.name),
            say("run: {command}, or {command} --resume", command=_launch(folder)),
        )
    return run, found


def _errors(plan: Plan, folder: Path, machine: Machine) -> set[tuple[str, str]]:
    found = facts.findings(plan, str(folder), machine, ignore=[rules.GENERATED_FILES])
    return {(finding.rule, finding.where) for finding in errors(found)}


def _write(plan_file: Path, old: Plan, new: Plan, change: PlanChange, *, dry_run: bool) -> None:
    """Change the plan's values in place, and write those generated files that the change alters."""
    before = plan_file.read_text(encoding="utf-8")
    name, folder = plan_file.name, plan_file.parent
    language = answers.language_of(folder) or current()
    with spoken(language):
        comment = t("after a failure: {why}", why=text(change.why))
    after = plans.edited(plan_file, change.changes, comment=comment)
    console.talk_diff(difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=0, lineterm=""))
    if dry_run:
        return
    texts = templates.load()
    was = {a.path: a.text for a in render.project(old, texts, language=language)}
    # The plan's own text is the edited one, so that comments and reasons stay; what a person edited stays theirs.
    is_untouched = artifacts.is_untouched(folder, render.PLAN_FILE)
    base = artifacts.texts(folder, [f"{artifacts.BASE}/{render.PLAN_FILE}"])
    generated = None if is_untouched else next(iter(base.values()), None)
    files = [
        render.Artifact(render.PLAN_FILE, after, generated=generated) if a.path == render.PLAN_FILE else a
        for a in render.project(new, texts, language=language)
        if a.path == render.PLAN_FILE or was.get(a.path) != a.text
    ]
    edited = [c for c in artifacts.conflicts(folder, files) if c.path != render.PLAN_FILE]
    if edited:
        _refuse(edited, folder, change)
    written = artifacts.write(folder, files, lambda _: "overwrite", partial=True)
    console.talk(t("written: {files}", files=", ".join((*written.written, *written.followed))))


def _refuse(edited: Sequence[Conflict], folder: Path, change: PlanChange) -> None:
    from trainwiz.workflows.create import project_files  # it imports the wizard's questions

    for conflict in edited:
        project_files.show(folder, conflict)
    words = ["trainwiz", "update", operand(folder)]
    for key, value in change.changes.items():
        words += ["--set", f"{key}={value}"]
    raise Refused(
        say(
            "the fix would change files that you edited: {files}; nothing was written",
            files=", ".join(c.path for c in edited),
        ),
        say("see the differences and decide: {line}", line=shlex.join(words)),
    )
