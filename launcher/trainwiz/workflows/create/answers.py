"""Everything that was answered without a question: flags, --set, --answers, and what was answered earlier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.message import Message, say

if TYPE_CHECKING:
    from trainwiz.decide import Source
    from trainwiz.finding import Place

IGNORE = "ignore."
"""What --set KEY=VALUE begins with for a rule that the project may break; the value is the reason."""
SETTING = "deepspeed."
"""What --set KEY=VALUE begins with for a setting of DeepSpeed that is no key of the plan."""
COMPOSITE = {"strategy": "strategy.kind"}
"""Flags whose value settles several keys, with their question's key."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """`firm` answers were given now, `earlier` ones before; `origins` says where those come from that nobody typed.

    `standing` are all values of a plan that was edited by hand, where nothing new was answered: it is meant as it is.
    """

    firm: Mapping[str, Any]
    earlier: Mapping[str, Any] = field(default_factory=dict)
    standing: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Source] = field(default_factory=dict)


def collect(
    flags: Mapping[str, str], assignments: Sequence[str], file: str | None, earlier: Mapping[str, Any], edited: set[str]
) -> Given:
    """Put the layers together: flag > --set > --answers FILE > earlier.

    `flags` maps a key (or a key of `COMPOSITE`) to what was typed. Raises `PlanError` with every wrong value at once,
    `UsageError` for a file that cannot be read.
    """
    from trainwiz.decide import Source
    from trainwiz.decide.earlier import beneath, stacked
    from trainwiz.errors import PlanError

    problems: list[Message] = []
    from_flags = _flags(flags, problems)
    from_set = _assignments(assignments, problems)
    places: dict[int, Place] = {}
    from_file = _file(file, problems, places) if file else {}
    if problems:
        raise PlanError(problems, places=[places.get(i) for i in range(len(problems))])
    typed = stacked((from_flags, from_set))
    firm = stacked((typed, from_file))
    if "strategy.kind" in firm:
        # Another strategy: what was offloaded under the earlier one was part of it.
        earlier = {k: v for k, v in earlier.items() if not k.startswith("strategy.")}
    in_file = Source(kind="file", reason=say("{file}", file=file))
    by_hand = Source(kind="file", reason=say("edited in trainwiz.yaml"))
    origins = {key: in_file for key in firm if key not in typed}
    origins |= {key: by_hand for key in edited if key not in firm}
    return Given(firm=firm, earlier=beneath(firm, earlier), origins=origins)


def of_project(folder: Path) -> tuple[dict[str, Any], set[str]]:
    """The answers that the project in a folder was made from, and those of its plan's values that were edited since.

    A plan without a record of its answers counts as answered in full. Raises `PlanError` for a plan that is wrong.
    """
    from trainwiz.render import PLAN_FILE
    from trainwiz.store import answers

    if not (folder / PLAN_FILE).is_file():
        return {}, set()
    from trainwiz.plan import fields, flat
    from trainwiz.store import plans

    present = flat(plans.read(folder / PLAN_FILE))
    del present["version"]
    saved = answers.read(folder / answers.PROJECT_FILE)
    if saved is None:
        return present, set(present)
    edited = {key for key, value in present.items() if key not in saved.plan or saved.plan[key] != value}
    kept = {key: present[key] for key in fields() if key in present and (key in saved.answers or key in edited)}
    return kept, edited


def standing(given: Given, folder: Path) -> Given:
    """The same answers over a plan that was edited by hand, all of whose values stay where they can."""
    from dataclasses import replace

    from trainwiz.decide import Source
    from trainwiz.plan import flat
    from trainwiz.render import PLAN_FILE
    from trainwiz.store import plans

    values = flat(plans.read(folder / PLAN_FILE))
    del values["version"]
    there = Source(kind="file", reason=say("as it stands in trainwiz.yaml"))
    origins = {key: there for key in values if key not in given.earlier}
    return replace(given, standing=values, origins={**origins, **given.origins})


def legal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the remembered values that a plan may have; others are forgotten (another version wrote them)."""
    from trainwiz.errors import PlanError
    from trainwiz.plan import nested, parse

    kept = {}
    for key, value in values.items():
        try:
            kept[key] = parse(nested({key: value})).get(key)
        except (PlanError, KeyError):
            continue
    return kept


def _flags(flags: Mapping[str, str], problems: list[Message]) -> dict[str, Any]:
    from trainwiz.questions import BASIC

    answers: dict[str, Any] = {}
    for flag, key in COMPOSITE.items():
        if flag in flags:
            question = next(q for q in BASIC if q.key == key)
            texts = question.read(flags[flag], {})
            if isinstance(texts, Message):
                problems.append(texts)
            else:
                answers |= _parsed(texts.items(), problems)
    single = _parsed(((k, v) for k, v in flags.items() if k not in COMPOSITE), problems)
    stage = answers.get("strategy.zero_stage")
    if stage is not None and single.get("strategy.zero_stage", stage) != stage:
        problems.append(
            say(
                "strategy.zero_stage: --strategy says {one}, --zero-stage says {other}; give one of them",
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
    from trainwiz.errors import PlanError
    from trainwiz.plan import parse_value

    answers: dict[str, Any] = {}
    ignored = {}
    settings = {}
    for key, value in pairs:
        if key.startswith(SETTING):
            settings[key.removeprefix(SETTING)] = _json(value)
            continue
        if key.startswith(IGNORE):
            ignored[key.removeprefix(IGNORE)] = value
            continue
        try:
            answers[key] = parse_value(key, value)
        except PlanError as error:
            problems += error.problems
    return answers | _mapping("ignore", ignored, problems) | _mapping("deepspeed", settings, problems)


def _mapping(key: str, values: Mapping[str, Any], problems: list[Message]) -> dict[str, Any]:
    from trainwiz.errors import PlanError
    from trainwiz.plan import parse

    try:
        return {key: parse({key: values}).get(key)} if values else {}
    except PlanError as error:
        problems += error.problems
        return {}


def _json(typed: str) -> Any:
    import json

    try:
        return json.loads(typed)
    except ValueError:
        return typed


def _file(file: str, problems: list[Message], places: dict[int, Place]) -> dict[str, Any]:
    """The answers in a file. What is wrong is added to `problems`, and its place to `places` by its number there."""
    from trainwiz.errors import PlanError
    from trainwiz.plan import nested, parse
    from trainwiz.store import plans

    document = plans.document(file)
    flat = dict(_flattened(document.values, ""))
    try:
        plan = parse(nested(_without_clashes(flat)), file)
    except PlanError as error:
        found = plans.places_of(document, error.problems)
        places |= {len(problems) + i: place for i, place in enumerate(found) if place}
        problems += [say("{file}: {problem}", file=file, problem=problem) for problem in error.problems]
        return {}
    return {key: plan.get(key) for key in flat if key != "version"}


def _flattened(values: Mapping[Any, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in ("ignore", "deepspeed"):
            yield from _flattened(value, f"{name}.")
        else:
            yield name, value


def _without_clashes(flat: Mapping[str, Any]) -> dict[str, Any]:
    # `batch: 5` beside `batch.x: 1`: the section's wrong value is what has to be named.
    return {k: v for k, v in flat.items() if not any(k.startswith(f"{other}.") for other in flat)}
