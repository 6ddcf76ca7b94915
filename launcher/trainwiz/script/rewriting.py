"""The text of a piece of a script, changed at single places; everything else stays as it was typed."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edit:
    """A node that is written as another text, or as one of its own parts."""

    node: ast.expr
    """What is replaced."""
    text: str
    """What is written, behind `part` where there is one."""
    part: ast.expr | None = None
    """The part of the node that remains."""

    @classmethod
    def of(cls, node: ast.expr, new: str | ast.expr, behind: str = "") -> Edit:
        """A node's replacement."""
        return cls(node, new) if isinstance(new, str) else cls(node, behind, new)


def unparsed(node: ast.expr, edits: Iterable[Edit]) -> str:
    """A node's text with the edits inside it, written anew. Raises `ValueError` where it cannot be written."""
    return ast.unparse(_edited(node, {id(edit.node): edit for edit in edits}))


def _edited(value: Any, edits: Mapping[int, Edit]) -> Any:
    """A copy of a node, or of a field of one, with other nodes in the place of those that are edited."""
    if isinstance(value, list):
        return [_edited(one, edits) for one in value]
    if not isinstance(value, ast.AST):
        return value
    edit = edits.get(id(value))
    if edit is not None:
        part = ast.unparse(_edited(edit.part, edits)) if edit.part is not None else ""
        return ast.parse(f"{part}{edit.text}", mode="eval").body
    return type(value)(**{name: _edited(one, edits) for name, one in ast.iter_fields(value)})


def rewritten(lines: Sequence[str], node: ast.expr | ast.stmt, edits: Iterable[Edit]) -> str:
    """A node's text with the edits inside it, without its indentation."""
    raw = [line.encode() for line in lines]  # the tree counts columns in bytes
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    start, end = _offset(raw, first, node.col_offset if first == node.lineno else 0), _end(raw, node)
    # Behind another statement, `a; b`, it is indented as the line is.
    line = raw[first - 1]
    indent = line[: len(line) - len(line.lstrip())] if isinstance(node, ast.stmt) and first == node.lineno else b""
    text = b"\n".join(raw)
    inside = {id(one) for one in ast.walk(node)}
    changes = []
    for edit in (one for one in edits if id(one.node) in inside):
        at, until = _start(raw, edit.node), _end(raw, edit.node)
        if edit.part is None:
            changes.append((at, until, edit.text.encode()))
        else:  # the part itself may hold edits
            changes += [(at, _start(raw, edit.part), b""), (_end(raw, edit.part), until, edit.text.encode())]
    for at, until, new in sorted(set(changes), reverse=True):
        text = text[:at] + new + text[until:]
        end += len(new) - (until - at)
    return textwrap.dedent((indent + text[start:end]).decode()).strip("\n")


def _start(raw: Sequence[bytes], node: ast.expr) -> int:
    return _offset(raw, node.lineno, node.col_offset)


def _end(raw: Sequence[bytes], node: ast.expr | ast.stmt) -> int:
    return _offset(raw, node.end_lineno or node.lineno, node.end_col_offset or 0)


def _offset(raw: Sequence[bytes], line: int, column: int) -> int:
    return sum(len(one) + 1 for one in raw[: line - 1]) + column
