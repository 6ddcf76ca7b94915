"""Secrets that a script spells out, such as a token for the hub: task.py reads them from variables instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.record import redaction
from trainwiz.record.tokens import HIDDEN

_OF_HUB = "HF_TOKEN"
"""The variable that huggingface_hub reads."""
_LEAST = 16
"""Characters of a secret that only its name gives away; shorter ones are words, such as the name of a column."""


def variables(text: str) -> dict[str, str]:
    """The secrets in code, each with the variable to read in its place."""
    return {node.value: variable for node, variable in _found(ast.parse(text))}  # type: ignore[misc]


def without(text: str) -> str:
    """Code that reads secrets from variables. The hub's may be missing: one may be logged in."""
    lines = text.splitlines(keepends=True)
    for node, variable in sorted(_found(ast.parse(text)), key=lambda one: (-one[0].lineno, -one[0].col_offset)):
        read = f'os.environ.get("{variable}")' if variable == _OF_HUB else f'os.environ["{variable}"]'
        before = "".join(lines[: node.lineno - 1]) + _cut(lines[node.lineno - 1], 0, node.col_offset)
        end = (node.end_lineno or node.lineno) - 1
        after = _cut(lines[end], node.end_col_offset or 0, None) + "".join(lines[end + 1 :])
        lines = f"{before}{read}{after}".splitlines(keepends=True)
    return "".join(lines)


def _cut(line: str, start: int, end: int | None) -> str:
    """A part of a line by the offsets of its bytes, as `ast` counts them."""
    return line.encode()[start:end].decode()


def _found(tree: ast.AST) -> Iterator[tuple[ast.Constant, str]]:
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    named = {id(value): name for node in ast.walk(tree) for name, value in _names(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            name = named.get(id(node), "")
            if variable := _variable(name, node.value):
                yield node, variable


def _names(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What a node calls a value: an argument, a variable, an item."""
    if isinstance(node, ast.keyword) and node.arg:
        yield node.arg, node.value
    elif isinstance(node, ast.Assign):
        yield from ((_last(target), node.value) for target in node.targets)
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from ((str(key.value), value) for key, value in pairs if isinstance(key, ast.Constant) and _is_text(key))


def _last(target: ast.expr) -> str:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and _is_text(target.slice):
        return str(target.slice.value)
    return target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""


def _is_text(node: ast.Constant) -> bool:
    return isinstance(node.value, str)


def _variable(name: str, value: str) -> str:
    """The variable for a secret; empty for what is none."""
    if value.startswith(("hf_", "api_org_")) and redaction.text(value) != value:
        return _OF_HUB
    long = len(value) >= _LEAST and not any(map(str.isspace, value)) and any(map(str.isdigit, value))
    hidden = redaction.settings({name: value})[name] == HIDDEN if name and long else False
    return (name.upper() if name.isidentifier() else "SECRET") if hidden or redaction.text(value) == HIDDEN else ""
