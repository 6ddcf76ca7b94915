"""From what a person wrote to a plan, and from one plan to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from trainwiz.errors import PlanError
from trainwiz.message import say
from trainwiz.plan.model import Plan, fields
from trainwiz.plan.problems import problem, unknown_key


def parse(values: Mapping[str, Any], source: str = "") -> Plan:
    """A plan from nested values, as YAML gives them.

    Raises `PlanError` naming every wrong key with its value, the legal ones, and the nearest known key.
    """
    if not isinstance(values, Mapping):
        raise PlanError(
            [say("a plan must be a mapping of keys to values, not {kind}", kind=type(values).__name__)], source
        )
    try:
        return Plan.model_validate(dict(values))
    except ValidationError as error:
        raise PlanError([problem(e) for e in error.errors()], source) from None


def parse_value(key: str, text: str) -> Any:
    """One value written on the command line, by the type of its key (`no` stays the word, `8` becomes 8).

    An empty text or `null` means None where the key allows it. Raises `PlanError`.
    """
    info = fields().get(key)
    if info is None:
        raise PlanError([unknown_key(key)])
    kind: Any = info.annotation
    for constraint in info.metadata:
        kind = Annotated[kind, constraint]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    candidates: tuple[Any, ...] = (None, text) if text in ("", "null") else (text,)
    for candidate in candidates:
        try:
            return adapter.validate_python(candidate)
        except ValidationError as error:
            failure = error
    raise PlanError([problem({**e, "loc": (*key.split("."), *e["loc"])}) for e in failure.errors()])


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
