"""Conversion of frozen dataclasses to plain JSON values and back; errors name every wrong or unknown key.

A validation library would take 100 ms to import, too long for reading the remembered machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from trainwiz.message import Message, say

T = TypeVar("T")


class Malformed(Exception):
    """Values do not fit their types. `problems` names each such key."""

    def __init__(self, problems: list[Message]) -> None:
        super().__init__("; ".join(str(p) for p in problems))
        self.problems = tuple(problems)


def plain(value: Any) -> Any:
    """The value as JSON's dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def build(kind: type[T], values: Any) -> T:
    """A dataclass from plain values; missing keys keep their defaults. Raises `Malformed` with all problems."""
    problems: list[Message] = []
    result = _value(kind, values, "", problems)
    if problems:
        raise Malformed(problems)
    return typing.cast(T, result)


def _value(kind: Any, value: Any, key: str, problems: list[Message]) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _value(next(a for a in arguments if a is not type(None)), value, key, problems)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, value, key, problems)
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) == len(value):
            return tuple(
                _value(k, v, f"{key}[{i}]", problems) for i, (k, v) in enumerate(zip(kinds, value, strict=True))
            )
    if origin is dict and isinstance(value, Mapping):
        return {str(k): _value(arguments[1], v, f"{key}.{k}", problems) for k, v in value.items()}
    # bool is a subclass of int, but `true` bytes of memory is a mistake.
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    problems.append(say("{key}: {value} is not {kind}", key=key, value=_shown(value), kind=_named(kind)))
    return None


def _record(kind: Any, values: Any, key: str, problems: list[Message]) -> Any:
    if not isinstance(values, Mapping):
        problems.append(say("{key}: {value} is not {kind}", key=key or "/", value=_shown(values), kind=_named(kind)))
        return None
    hints = _hints(kind)
    before = len(problems)
    given = {}
    for name, value in values.items():
        path = f"{key}.{name}" if key else str(name)
        if name in hints:
            given[name] = _value(hints[name], value, path, problems)
        else:
            problems.append(_unknown(path, str(name), list(hints)))
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            problems.append(say("{key}: missing", key=f"{key}.{field.name}" if key else field.name))
    return kind(**given) if len(problems) == before else None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _unknown(path: str, name: str, known: list[str]) -> Message:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return say("{key}: unknown key; did you mean {near}?", key=path, near=near[0])
    return say("{key}: unknown key; known keys here: {known}", key=path, known=", ".join(known))


def _named(kind: Any) -> Message:
    simple = {str: say("a string"), int: say("an integer"), bool: say("true or false")}
    if kind in simple:
        return simple[kind]
    return say("a list") if typing.get_origin(kind) is tuple else say("an object with keys")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
