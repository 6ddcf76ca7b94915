"""Everything that was answered without a question: flags, --set, --answers, and what was answered earlier."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwiz.decide import Source
from trainwiz.decide.earlier_answers import stacked, without_replaced
from trainwiz.errors import PlanError
from trainwiz.finding import Place
from trainwiz.message import Message, say
from trainwiz.plan import dotted, fields, parse_value, parse_values
from trainwiz.questions import question_for
from trainwiz.recipes import Recipe
from trainwiz.render import PLAN_FILE
from trainwiz.store import answers as store
from trainwiz.store import plans
from trainwiz.workflows.create.request import Answers

_STRATEGY = "strategy"
"""The flag whose value sets several keys."""
_MAPPINGS = ("ignore", "deepspeed")
"""Keys of the plan with entries of their own: rules that the project may break, each with the reason; and settings of
DeepSpeed that are not keys of the plan. `--set` names an entry behind a dot."""


def collect(
    flags: Mapping[str, str],
    assignments: Sequence[str],
    file: str | None,
    earlier: Mapping[str, Any],
    edited: set[str],
    *,
    recipe: Recipe | None = None,
) -> Answers:
    """Put the layers together: flag > --set > --answers FILE > recipe > earlier.

    `flags` maps a key (or `strategy`) to what was typed. Raises `PlanError` with every wrong value at once,
    `UsageError` for a file that cannot be read.
    """
    problems: list[Message] = []
    from_flags = _flags(flags, problems)
    from_set = _assignments(assignments, problems)
    places: dict[int, Place] = {}
    from_file = _file(file, problems, places) if file else {}
    if problems:
        raise PlanError(problems, places=[places.get(i) for i in range(len(problems))])
    typed = stacked((from_flags, from_set))
    own = stacked((typed, from_file))
    given = stacked((own, parse_values(recipe.answers) if recipe else {}))
    if "strategy.kind" in given:
        # What was offloaded was part of the earlier strategy.
        earlier = {k: v for k, v in earlier.items() if not k.startswith("strategy.")}
    in_file = Source(kind="file", reason=say("{file}", file=file))
    by_hand = Source(kind="file", reason=say("edited in trainwiz.yaml"))
    sources = {key: in_file for key in own if key not in typed}
    if recipe:
        begun = Source(kind="file", reason=say("recipe {name}", name=recipe.name))
        sources |= {key: begun for key in given if key not in own}
    sources |= {key: by_hand for key in edited if key not in given}
    return Answers(given=given, earlier=without_replaced(given, earlier), sources=sources)


def of_project(folder: Path) -> tuple[dict[str, Any], set[str]]:
    """The answers that the project in a folder was made from, and those of its plan's values that were edited since.

    Only keys that stand in trainwiz.yaml count; without a record of its answers all of these do. Raises `PlanError` for
    a wrong value.
    """
    if not (folder / PLAN_FILE).is_file():
        return {}, set()
    present = _values(folder)
    saved = store.read(folder / store.PROJECT_FILE)
    if saved is None:
        return present, set(present)
    edited = {key for key, value in present.items() if key not in saved.plan or saved.plan[key] != value}
    kept = {key: present[key] for key in fields() if key in present and (key in saved.answers or key in edited)}
    return kept, edited


def gpus_of(folder: Path) -> str:
    """The GPUs that the project in a folder was made for, where it was made on another machine: 8xH100; else empty."""
    return store.gpus_of(folder) if (folder / PLAN_FILE).is_file() else ""


def with_edited_plan(answers: Answers, folder: Path) -> Answers:
    """The same answers for a plan that was edited by hand, whose values all stay where they can."""
    values = _values(folder)
    there = Source(kind="file", reason=say("from trainwiz.yaml"))
    sources = {key: there for key in values if key not in answers.earlier}
    return dataclasses.replace(answers, edited_plan=values, sources={**sources, **answers.sources})


def with_given(answers: Answers, keys: Iterable[str]) -> Answers:
    """The same answers, of which those that an interrupted call gave are asked no more than there."""
    kept = {key: answers.earlier[key] for key in keys if key in answers.earlier}
    earlier = {key: value for key, value in answers.earlier.items() if key not in kept}
    return dataclasses.replace(answers, given={**kept, **answers.given}, earlier=earlier)


def _values(folder: Path) -> dict[str, Any]:
    values = plans.values_of(plans.document(folder / PLAN_FILE))
    values.pop("version", None)
    return values


def legal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the remembered values that a plan may have; others are forgotten (another version wrote them)."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        try:
            kept |= parse_values({key: value})
        except PlanError:
            continue
    return kept


def _flags(flags: Mapping[str, str], problems: list[Message]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    if _STRATEGY in flags:
        texts = question_for("strategy.kind").read(flags[_STRATEGY], {})
        if isinstance(texts, Message):
            problems.append(texts)
        else:
            answers |= _parsed(texts.items(), problems)
    single = _parsed(((k, v) for k, v in flags.items() if k != _STRATEGY), problems)
    stage = answers.get("strategy.zero_stage")
    if stage is not None and single.get("strategy.zero_stage", stage) != stage:
        problems.append(
            say(
                "strategy.zero_stage: --strategy gives {one}, but --zero-stage gives {other}; use only one of them",
                one=stage,
                other=single["strategy.zero_stage"],
            )
        )
    return {**answers, **single}


def _assignments(assignments: Sequence[str], problems: list[Message]) -> dict[str, Any]:
    pairs = []
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            problems.append(say("--set {given}: write KEY=VALUE, for example --set seed=7", given=repr(assignment)))
        else:
            pairs.append((key.strip(), value))
    return _parsed(pairs, problems)


def _parsed(pairs: Iterable[tuple[str, str]], problems: list[Message]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    entries: dict[str, dict[str, Any]] = {key: {} for key in _MAPPINGS}
    for key, value in pairs:
        mapping, dot, name = key.partition(".")
        if dot and mapping in entries:
            entries[mapping][name] = _json(value) if mapping == "deepspeed" else value
            continue
        try:
            answers[key] = parse_value(key, value)
        except PlanError as error:
            problems += error.problems
    for key, values in entries.items():
        try:
            answers |= parse_values({key: values}) if values else {}
        except PlanError as error:
            problems += error.problems
    return answers


def _json(typed: str) -> Any:
    try:
        return json.loads(typed)
    except ValueError:
        return typed


def _file(file: str, problems: list[Message], places: dict[int, Place]) -> dict[str, Any]:
    """The answers in a file. Mistakes are added to `problems`, and their places to `places` by their number there."""
    document = plans.document(file)
    try:
        found = parse_values(dotted(document.values))
    except PlanError as error:
        located = plans.places_of(document, error.problems)
        places |= {len(problems) + i: place for i, place in enumerate(located) if place}
        problems += [say("{file}: {problem}", file=file, problem=problem) for problem in error.problems]
        return {}
    found.pop("version", None)
    return found
