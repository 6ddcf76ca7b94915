"""`trainwiz update`: generate a project's files again from its plan, and keep what a user changed in them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.errors import Refused, UsageError
from trainwiz.finding import errors
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.plan import flat
from trainwiz.process import merge
from trainwiz.render import PLAN_FILE
from trainwiz.shell_words import quoted
from trainwiz.store import answers as store
from trainwiz.store import artifacts, plans, templates
from trainwiz.store.artifacts import Choice, Conflict, Merged, Written
from trainwiz.ui import console, findings
from trainwiz.workflows.create.next_plan import NextPlan, next_plan
from trainwiz.workflows.create.planner import Planner
from trainwiz.workflows.create.request import UpdateRequest

if TYPE_CHECKING:
    from trainwiz.plan import Plan
    from trainwiz.workflows.create.update_proof import Proof

_WAYS: tuple[str, ...] = ("markers", "beside", "keep", "overwrite")


# docs/decisions/files.md: `trainwiz update` merges with git merge-file
def update(request: UpdateRequest) -> int:
    """Update the project; 1 where a conflict is left to resolve. Raises `TrainwizError` before anything is written."""
    if request.on_conflict and request.on_conflict not in _WAYS:
        ways = ", ".join(_WAYS)
        raise UsageError(say("--on-conflict: {given} is not one of {ways}", given=repr(request.on_conflict), ways=ways))
    plan_file = plans.find(request.folder)
    folder = plan_file.parent
    if plan_file.name != PLAN_FILE:
        raise UsageError(
            say("{file} is no project; its plan must be named {plan}", file=plan_file, plan=PLAN_FILE),
            say("pass the project's folder"),
        )
    _refuse_unresolved(folder)
    planner = Planner(folder=folder, machine_file=request.machine or None, python=request.python or None)
    if not planner.machine_file and (gpus := store.gpus_of(folder)) and not planner.machine.gpus:
        planner = Planner(folder=folder, gpus=gpus, python=request.python or None)
    plan = next_plan(planner, folder, request.assignments)
    found = _findings(plan.decided.plan, folder)
    prepared = _prepared(plan_file, plan, request.on_conflict)
    if not request.json:
        for key, (old, new) in _changed(plan).items():
            console.talk(t("{key}: {old} → {new}", key=key, old=old, new=new))
        _tell_what_stays(plan)
        findings.show(found)
    changes = {path: _difference(prepared, path) for path in _touched(prepared)}
    proof = _proof(folder, plan, prepared, request.python) if request.prove else None
    if proof and proof.problem:
        raise Refused(proof.problem, say("to write them anyway, update without --prove"))
    if not request.dry_run:
        prepared.write()
        values = {key: value for key, value in flat(plan.decided.plan).items() if key != "version"}
        made_for = planner.gpus_elsewhere or store.gpus_of(folder)
        saved = store.Saved(answers=plan.answers, plan=values, language=plan.language, gpus=made_for)
        store.write(folder / store.PROJECT_FILE, saved)
    done = prepared.outcomes
    if request.json:
        console.data_json(
            {
                "values": _changed(plan),
                "stays": {key: [plan.before[key], default] for key, default in plan.stays.items()},
                **{name: getattr(done, name) for name in Written.__dataclass_fields__},
                **({"proof": proof.to_dict()} if proof else {}),
            }
        )
    else:
        # Told when it is true: a full disk or a proof that fails leaves everything as it was.
        _tell_files(prepared, changes, show_diff=request.dry_run)
        _tell_conflicts(done, folder)
    return 1 if done.conflicted or done.beside else 0


def _proof(folder: Path, plan: NextPlan, prepared: artifacts.Prepared, python: str) -> Proof:
    """Show that neutral changes do not matter. `Proof` says why nothing is claimed if something else changes."""
    from trainwiz.workflows.create import update_proof

    return update_proof.of(folder, plan.decided.plan, prepared, python)


def _refuse_unresolved(folder: Path) -> None:
    """Merging twice would put markers between markers. Raises `Refused`."""
    places = [f"{path}:{line}" for path, line in artifacts.conflict_markers(folder, artifacts.changed(folder))]
    if places:
        raise Refused(
            say(
                "conflicts of an earlier merge are unresolved: {places}; nothing was written", places=", ".join(places)
            ),
            say("keep the correct lines, delete the markers, and update again"),
        )


def _findings(plan: Plan, folder: Path) -> Any:
    """What the rules say of the plan itself: the machine that trains is often another one. Raises `Refused`."""
    from trainwiz.rules import GENERATED_FILES
    from trainwiz.workflows import facts

    found = facts.findings(plan, str(folder), None, ignore=(GENERATED_FILES,))
    if errors(found):
        findings.show(found)
        raise Refused(
            say("the plan has errors: {n}; nothing was written", n=len(errors(found))),
            say("change these keys in trainwiz.yaml, or with --set KEY=VALUE"),
        )
    return found


def _prepared(plan_file: Path, plan: NextPlan, way: str) -> artifacts.Prepared:
    """What is to be written. `way` is empty where none was typed."""
    from trainwiz import render
    from trainwiz.render.artifact import Artifact

    files = render.project(plan.decided.plan, templates.load(), reasons=plan.reasons, language=plan.language)
    # Of a plan that nobody edited, what is written is what counts as generated: `init` may replace it.
    if not artifacts.is_untouched(plan_file.parent, PLAN_FILE):
        text = plans.refreshed(plans.document(plan_file), plan.decided.plan, plan.reasons, plan.comments)
        files = tuple(
            Artifact(file.path, text, generated=file.text) if file.path == PLAN_FILE else file for file in files
        )

    def resolve(conflict: Conflict) -> Choice | Merged:
        return "overwrite" if conflict.path == PLAN_FILE else _resolved(conflict, way or _WAYS[0])

    return artifacts.prepare(plan_file.parent, files, resolve, again=bool(way))


def _resolved(conflict: Conflict, way: str) -> Choice | Merged:
    """A merge where there is something to merge with; else the new file beside the person's."""
    if conflict.base is None or conflict.present is None:
        return "beside" if way == "markers" else way  # type: ignore[return-value]
    labels = {"ours": t("yours"), "base": t("generated before"), "theirs": t("generated now")}
    merged = merge.three_way(conflict.base, conflict.present, conflict.new, labels)
    if merged is None:
        console.talk(t("{path}: git is needed to merge your edits, and it was not found", path=conflict.path))
        return "beside" if way == "markers" else way  # type: ignore[return-value]
    text, conflicts = merged
    return Merged(text=text, conflicts=conflicts) if not conflicts or way == "markers" else way  # type: ignore[return-value]


def _changed(plan: NextPlan) -> dict[str, tuple[Any, Any]]:
    """The values that differ from those in the file, by key: before and after."""
    after = flat(plan.decided.plan)
    return {key: (old, after[key]) for key, old in plan.before.items() if old != after[key]}


def _tell_what_stays(plan: NextPlan) -> None:
    for key, default in plan.stays.items():
        value = plan.before[key]
        console.talk(t("{key} stays {value}; its default is now {default}", key=key, value=value, default=default))
    if plan.stays:
        console.talk(t("→ to take a default, delete its line in {file}, and update again", file=PLAN_FILE))


def _touched(prepared: artifacts.Prepared) -> dict[str, str]:
    """The files that are written or removed, each with what becomes of it."""
    done = prepared.outcomes
    return {
        **dict.fromkeys(done.written, t("written")),
        **dict.fromkeys(done.followed, t("your edits kept, new values set")),
        **dict.fromkeys(done.merged, t("merged with your edits")),
        **dict.fromkeys(done.conflicted, t("merged, with conflicts")),
        **dict.fromkeys(done.beside, t("written next to your file")),
        **dict.fromkeys(done.removed, t("removed; the plan no longer needs it")),
    }


def _tell_files(prepared: artifacts.Prepared, changes: Mapping[str, list[str]], *, show_diff: bool) -> None:
    """Each file with the numbers of its new and old lines; in a dry run with the difference."""
    done = prepared.outcomes
    for path, what in _touched(prepared).items():
        lines = changes[path]
        added, gone = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
        if lines or path in done.removed:
            console.talk(
                t("{path}: {what} (+{added} -{gone})", path=prepared.root / path, what=what, added=added, gone=gone)
            )
        if show_diff:
            console.talk_diff(lines)
    for path in done.kept:
        console.talk(t("{path}: kept unchanged", path=prepared.root / path), style="warning")
    for path in _still_kept(prepared):
        console.talk(
            t(
                "{path} lacks changes of an earlier update; to merge: trainwiz update {folder} --on-conflict markers",
                path=prepared.root / path,
                folder=quoted(prepared.root),
            ),
            style="warning",
        )
    if not any(changes.values()) and not done.removed:
        console.talk(t("Nothing changed: {folder} is already up to date.", folder=prepared.root.resolve().name))


def _still_kept(prepared: artifacts.Prepared) -> list[str]:
    """The files that an earlier update left as they are, and this one too."""
    done = prepared.outcomes
    return [path for path in artifacts.kept(prepared.root) if path in (*done.unchanged, *done.followed)]


def _difference(prepared: artifacts.Prepared, path: str) -> list[str]:
    old = artifacts.texts(prepared.root, [path]).get(path, "")
    new = "" if path in prepared.outcomes.removed else prepared.texts[path]
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm=""))


def _tell_conflicts(done: Written, folder: Path) -> None:
    for path in done.conflicted:
        console.talk(
            t("{path}: resolve the conflicts between <<<<<<< and >>>>>>>, then launch", path=folder / path),
            style="warning",
        )
    for path in done.beside:
        console.talk(t("{path}: compare it with your file, which was kept", path=folder / path), style="warning")
