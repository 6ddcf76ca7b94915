"""What a project's script says without being run: the fields of its `Config`, read and set; functions left to write."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLASSES = ("TaskConfig", "Config")
"""The second derives from the first, so that its fields win."""


@dataclass(frozen=True)
class Field:
    """One field as it is declared."""

    value: Any
    """Its default; None where it is computed."""
    is_literal: bool
    """Whether the default is written down, so that nothing needs to run to know it."""
    line: int
    """Where, from 1."""


def declared(text: str) -> dict[str, Field]:
    """The fields by name, in their order; none for a text that is not Python."""
    return dict(_declared(text))


@functools.lru_cache(maxsize=64)
def _declared(text: str) -> Mapping[str, Field]:
    """As above. A command asks several times about each file of a project."""
    found: dict[str, Field] = {}
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for name in CLASSES:
        for target, value in _annotated(classes.get(name)):
            try:
                found[target.id] = Field(ast.literal_eval(value), True, value.lineno)
            except (ValueError, TypeError, RecursionError):
                found[target.id] = Field(None, False, value.lineno)
    return found


def options(loop: str, task: str) -> frozenset[str] | None:
    """The options of a loop that has one for each field of its Config; None where it may have others."""
    try:
        classes = {n.name: n for text in (task, loop) for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}
    except (SyntaxError, ValueError):
        return None
    bases = [[ast.unparse(base) for base in classes[name].bases] if name in classes else None for name in CLASSES]
    made = loop.count("add_argument(") == 1 and 'add_argument(f"--{field.name}"' in loop
    if bases != [[], ["task.TaskConfig"]] or not made:
        return None
    return frozenset({**declared(task), **declared(loop)})


def unwritten(text: str) -> dict[str, int]:
    """The functions that end in `raise NotImplementedError` and return nothing, each with that line."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for function in (node for node in body if isinstance(node, ast.FunctionDef)):
        last = function.body[-1]
        raised = ast.unparse(last.exc) if isinstance(last, ast.Raise) and last.exc else ""
        returns = any(isinstance(node, ast.Return | ast.Yield) for node in ast.walk(function))
        if raised.startswith("NotImplementedError") and not returns:
            found[function.name] = last.lineno
    return found


def functions(text: str) -> dict[str, int]:
    """The functions of a module, each with its line."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    return {node.name: node.lineno for node in body if isinstance(node, ast.FunctionDef)}


def literals(text: str) -> dict[str, Any]:
    """The defaults that are written down, by name."""
    return {name: field.value for name, field in declared(text).items() if field.is_literal}


def same(one: object, other: object) -> bool:
    """Whether two values of a field mean the same: 1 and 1.0 do, 1 and True do not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def with_literals(text: str, values: Mapping[str, Any]) -> str:
    """The text with the defaults of these fields replaced, in whichever class declares them."""
    classes = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name in CLASSES]
    for name in classes:
        text = set_literals(text, name, values)
    return text


def set_literals(source: str, class_name: str, values: Mapping[str, Any]) -> str:
    """The source with the defaults of a dataclass's fields replaced, where `values` names them.

    Values go in as `repr` of plain literals: an answer can never become code. Raises `ValueError` if the class is
    missing, or if a value is not a plain literal.
    """
    lines = source.encode().splitlines(keepends=True)  # the tree counts columns in bytes
    for name, number, begin, end in _defaults(source, class_name):
        if name in values:
            line = lines[number - 1]
            lines[number - 1] = line[:begin] + _literal(values[name]).encode() + line[end:]
    return b"".join(lines).decode()


@functools.lru_cache(maxsize=64)
def _defaults(source: str, class_name: str) -> tuple[tuple[str, int, int, int], ...]:
    """The defaults of one line each: field, line from 1, and the columns between which it stands.

    The same few templates are rendered again and again while a plan changes.
    """
    config = next((n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == class_name), None)
    if config is None:
        raise ValueError(f"no class {class_name}")
    return tuple(
        (target.id, default.lineno, default.col_offset, default.end_col_offset or 0)
        for target, default in _annotated(config)
        if default.lineno == default.end_lineno
    )


def with_constant(source: str, name: str, value: str | Sequence[str] | Mapping[str, str | float]) -> str:
    """The source with another literal in an assignment of the module."""
    assigned = (n for n in ast.parse(source).body if isinstance(n, ast.Assign | ast.AnnAssign) and n.value)
    node = next(n for n in assigned if ast.unparse(n.target if isinstance(n, ast.AnnAssign) else n.targets[0]) == name)
    lines = source.splitlines()
    first = node.lineno - 1
    head, _, _ = lines[first].partition(" = ")
    lines[first : node.end_lineno] = f"{head} = {_shown(value)}".splitlines()
    return "\n".join(lines) + "\n"


def _shown(value: str | Sequence[str] | Mapping[str, str | float]) -> str:
    if isinstance(value, str):
        return _literal(value)
    if not isinstance(value, Mapping):
        return "(\n" + "".join(f"    {_literal(one)},\n" for one in value) + ")" if value else "()"
    if not value:
        return "{}"
    items = (f"    {_literal(key)}: {_literal(one)},\n" for key, one in value.items())
    return f"{{\n{''.join(items)}}}"


def _annotated(config: ast.ClassDef | None) -> list[tuple[ast.Name, ast.expr]]:
    """The names of a dataclass that have a type and a default."""
    return [
        (node.target, node.value)
        for node in (config.body if config else ())
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    ]


def _literal(value: Any) -> str:
    text = (
        f'"{value}"'
        if isinstance(value, str) and not set(value) & set("\"\\'") and value.isprintable()
        else repr(value)
    )
    if not isinstance(value, bool | int | float | str) or ast.literal_eval(text) != value:
        raise ValueError(f"{value!r} cannot stand in a config")
    return text
