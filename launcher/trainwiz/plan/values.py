"""Parses plans and single values that a user wrote, and derives one plan from another."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from trainwiz.errors import PlanError
from trainwiz.message import Message, say
from trainwiz.plan.model import Plan, fields, sections
from trainwiz.plan.problems import missing, not_a_section, problem, unknown_key
from trainwiz.shell_words import quoted


def parse(values: Mapping[str, Any], source: str = "") -> Plan:
    """A plan from nested values, as YAML gives them.

    Raises `PlanError` naming every wrong key with its value, the legal ones, and the nearest known key. Where no key is
    wrong, it names in one problem every key that is missing; then it has a remedy, too.
    """
    if not isinstance(values, Mapping):
        raise PlanError(
            [say("a plan must be a mapping of keys to values, not {kind}", kind=type(values).__name__)], source
        )
    try:
        return Plan.model_validate(dict(values))
    except ValidationError as error:
        wrong = [problem(e) for e in error.errors() if e["type"] != "missing"]
        if wrong:
            # A misspelled key leaves its right name missing, which would be one mistake told twice.
            raise PlanError(wrong, source) from None
        file = source or "FILE"
        raise PlanError(
            [_missing(error.errors())],
            source,
            head=say("{file}: the plan is incomplete", file=file),
            remedy=say("trainwiz init DIR --answers {file} decides the missing keys", file=quoted(file)),
        ) from None


def parse_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key, each as its key wants it; a whole plan they need not make.

    Raises `PlanError` naming every wrong one.
    """
    legal: dict[str, Any] = {}
    problems: list[Message] = []
    given = {key: value for key, value in values.items() if value != {} or key not in sections()}
    for key, value in given.items():
        if key.partition(".")[0] in given.keys() - {key}:
            continue  # `batch: 5` beside `batch.x: 1`: the wrong value of the section is what has to be named
        try:
            legal[key] = _legal(key, value)
        except PlanError as error:
            problems += error.problems
    if problems:
        raise PlanError(problems)
    return legal


def parse_value(key: str, text: str) -> Any:
    """One value written on the command line, by the type of its key (`no` stays the word, `8` becomes 8).

    An empty text or `null` means None where the key allows it. Raises `PlanError`.
    """
    if text in ("", "null"):
        try:
            return _legal(key, None)
        except PlanError:
            pass
    return _legal(key, text)


def _legal(key: str, value: Any) -> Any:
    if key in sections():
        raise PlanError([not_a_section(key, value)])
    if key not in fields():
        raise PlanError([unknown_key(key)])
    try:
        return _adapter(key).validate_python(value)
    except ValidationError as error:
        problems = [problem({**e, "loc": (*key.split("."), *e["loc"])}) for e in error.errors()]
        raise PlanError(problems) from None


@functools.cache
def _adapter(key: str) -> TypeAdapter[Any]:
    info = fields()[key]
    kind: Any = info.annotation
    for constraint in info.metadata:
        kind = Annotated[kind, constraint]
    return TypeAdapter(kind)


def _missing(errors: list[ErrorDetails]) -> Message:
    places = [".".join(map(str, error["loc"])) for error in errors]
    required = [key for key, info in fields().items() if info.is_required()]
    return missing([key for key in required if key in places or key.partition(".")[0] in places])


def with_changes(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """The plan with values replaced by dotted key. Raises `PlanError`."""
    values = plan.model_dump()
    problems = [unknown_key(key) for key in changes if key not in fields()]
    if problems:
        raise PlanError(problems)
    for key, value in changes.items():
        *sections, name = key.split(".")
        target = values
        for section in sections:
            target = target[section]
        target[name] = value
    return parse(values)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """`{"batch.real_batch_size": 8}` → `{"batch": {"real_batch_size": 8}}`."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = value
    return result


def dotted(nested: Mapping[Any, Any]) -> dict[str, Any]:
    """`{"batch": {"real_batch_size": 8}}` → `{"batch.real_batch_size": 8}`; the inverse of `nested`."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if key in sections() and isinstance(value, Mapping) and value:
            flat |= {f"{key}.{name}": one for name, one in value.items()}
        else:
            flat[str(key)] = value
    return flat
