"""The plan of a project after an edit of its file, or with new values for some keys: everything else stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import language
from trainwiz.decide import Decided, Source
from trainwiz.decide.earlier import carry, values_to_keep, without_replaced
from trainwiz.errors import PlanError, TrainwizError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.plan import flat
from trainwiz.render import PLAN_FILE
from trainwiz.store import answers as store
from trainwiz.store import artifacts, plans
from trainwiz.store.artifacts import BASE
from trainwiz.ui import console
from trainwiz.workflows.create import answers, project_files
from trainwiz.workflows.create.planner import Planner


@dataclass(frozen=True, kw_only=True)
class NextPlan:
    """What was decided, and what stood there before."""

    before: Mapping[str, Any]
    """The values in the file, by key."""
    answers: Mapping[str, Any]
    """What makes the plan."""
    decided: Decided
    """The new plan, and where its values come from."""
    reasons: Mapping[str, str]
    """The comment of each value: a new one only where its reason changed."""
    comments: Mapping[str, str]
    """The comments as they were generated before."""
    language: str
    """That of the project's files, whoever updates them."""


def next_plan(planner: Planner, folder: Path, assignments: Sequence[str]) -> NextPlan:
    """Decide again. Raises `PlanError` for a value that does not fit to the others."""
    before = plans.values_of(plans.document(folder / PLAN_FILE))
    before.pop("version", None)
    earlier, edited = answers.of_project(folder)
    collected = answers.collect({}, assignments, None, earlier, edited)
    given = collected.given
    there = Source(kind="file", reason=say("from trainwiz.yaml"))
    known = {**dict.fromkeys(before, there), **collected.sources}
    planner.sources = {key: source for key, source in known.items() if key not in given}
    kept = _kept(planner, given, collected.earlier, edited)
    chosen = {**given, **kept}
    stay = without_replaced(given, before)
    if given:
        # What follows from the given values, and from nothing else, is decided anew.
        moved, unmoved = planner.decide(chosen).plan, planner.decide(earlier).plan
        stay = {key: value for key, value in stay.items() if moved.get(key) == unmoved.get(key)}
    final = {**chosen, **values_to_keep(chosen, stay, planner.decide)}
    decided = planner.decide(final)
    is_untouched = artifacts.is_untouched(folder, PLAN_FILE)
    generated = artifacts.texts(folder, [PLAN_FILE if is_untouched else f"{BASE}/{PLAN_FILE}"])
    comments = plans.reasons(next(iter(generated.values()), ""))
    fresh = {*given, *edited, *_with_other_reasons(planner, folder, decided)} - (final.keys() - given.keys() - edited)
    spoken = store.language_of(folder) or language.current()
    with language.spoken(spoken):
        reasons = {**comments, **{key: r for key, r in project_files.reasons(decided).items() if key in fresh}}
    return NextPlan(before=before, answers=final, decided=decided, reasons=reasons, comments=comments, language=spoken)


def _kept(
    planner: Planner, given: Mapping[str, Any], earlier: Mapping[str, Any], edited: set[str]
) -> Mapping[str, Any]:
    """The earlier answers that fit. Raises `PlanError` for one that does not and that a person wrote into the file."""
    kept, dropped = carry(given, earlier, planner.decide)
    problems = [problem for lost in dropped if lost.key in edited for problem in lost.problems]
    if problems:
        raise PlanError(problems)
    for lost in dropped:
        console.talk(
            t(
                "{key}: the earlier value {value} is no longer valid; a new value is chosen",
                key=lost.key,
                value=lost.value,
            )
        )
    return kept


def _with_other_reasons(planner: Planner, folder: Path, decided: Decided) -> set[str]:
    """The keys that are decided otherwise, or for another reason, than the saved plan would be here and now.

    Not those whose reasons differ from the file's only because another machine, or an older version, decided them.
    """
    saved = store.read(folder / store.PROJECT_FILE)
    after = flat(decided.plan)
    if saved is None:
        return set(after)
    changed = {key for key, value in after.items() if saved.plan.get(key) != value}
    try:
        legal = answers.legal(saved.answers)
        old = planner.decide({**legal, **values_to_keep(legal, answers.legal(saved.plan), planner.decide)})
    except TrainwizError:
        return changed
    then, now = project_files.reasons(old), project_files.reasons(decided)
    return changed | {key for key in now if then.get(key) != now[key]}
