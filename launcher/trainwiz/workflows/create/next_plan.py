"""The plan of a project after an edit of its file, or with new values for some keys: everything else stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import language
from trainwiz.decide import Decided, Source
from trainwiz.decide.earlier_answers import carry, values_to_keep, without_replaced
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
    stays: Mapping[str, Any]
    """The defaults that follow from the edits, by key, of values that stay as they are in the file."""
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
    old = _saved(planner, folder)
    fresh = {*given, *edited, *_with_other_reasons(old, decided)} - (final.keys() - given.keys() - edited)
    outlived = final.keys() - chosen.keys() - old.kept.keys() if old else ()
    defaults = planner.decide(chosen).plan if outlived else decided.plan
    stays = {key: defaults.get(key) for key in sorted(outlived)}
    spoken = store.language_of(folder) or language.current()
    with language.spoken(spoken):
        reasons = {**comments, **{key: r for key, r in project_files.reasons(decided).items() if key in fresh}}
        reasons |= dict.fromkeys(stays, t("file: stayed as it was when other values were edited"))
    return NextPlan(
        before=before,
        answers=final,
        decided=decided,
        reasons=reasons,
        comments=comments,
        stays=stays,
        language=spoken,
    )


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


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """What was saved of the plan that the project has now, as it would be decided here and now."""

    plan: Mapping[str, Any]
    """Its values, as they were written."""
    kept: Mapping[str, Any]
    """Those that are decided otherwise today: another machine, or an older version, decided them."""
    decided: Decided | None
    """None where its answers do not fit together any more."""


def _saved(planner: Planner, folder: Path) -> _Saved | None:
    """None where nothing is known of what made the plan."""
    saved = store.read(folder / store.PROJECT_FILE)
    if saved is None:
        return None
    try:
        legal = answers.legal(saved.answers)
        kept = values_to_keep(legal, answers.legal(saved.plan), planner.decide)
        return _Saved(plan=saved.plan, kept=kept, decided=planner.decide({**legal, **kept}))
    except TrainwizError:
        return _Saved(plan=saved.plan, kept=saved.plan, decided=None)


def _with_other_reasons(old: _Saved | None, decided: Decided) -> set[str]:
    """The keys that are decided otherwise, or for another reason, than the saved plan would be here and now.

    Not those whose reasons differ from the file's only because another machine, or an older version, decided them.
    """
    after = flat(decided.plan)
    if old is None:
        return set(after)
    changed = {key for key, value in after.items() if old.plan.get(key) != value}
    if old.decided is None:
        return changed
    then, now = project_files.reasons(old.decided), project_files.reasons(decided)
    return changed | {key for key in now if then.get(key) != now[key]}
