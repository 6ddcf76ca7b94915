"""YAML as PyYAML's safe loader reads it, which is how accelerate does, with positions from its node graph."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml

from trainwiz.config.document import DEEPEST, Document, Duplicate, Entry, KeyPath, Span, Trouble
from trainwiz.message import Message, say

# The C parser is ten times as fast; not every PyYAML has it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class _Found:
    entries: dict[KeyPath, Entry] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    walked: set[int] = field(default_factory=set)
    """Nodes by identity: an anchor may stand inside itself, or a thousand times."""


def read(path: str, text: str) -> Document:
    """The document in a text; with its `trouble` where there is none."""
    found = _Found()
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            values = loader.construct_document(node) if node is not None else None
            _walk(node, (), found)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        return _troubled(path, text, _syntax(error, text))
    except yaml.reader.ReaderError as error:
        return _troubled(path, text, _character(error, text))
    except RecursionError:
        return _troubled(path, text, Trouble(say("brackets are nested too deeply")))
    except (ValueError, TypeError, AttributeError) as error:
        return _troubled(path, text, Trouble(say("{problem}", problem=error)))
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        return _troubled(path, text, Trouble(_kind(node), fix=say("write keys with values, like `num_processes: 2`")))
    return Document(
        path=path, text=text, syntax="yaml", values=values, entries=found.entries, duplicates=tuple(found.duplicates)
    )


def _troubled(path: str, text: str, trouble: Trouble) -> Document:
    return Document(path=path, text=text, syntax="yaml", trouble=trouble)


def _walk(node: yaml.Node | None, path: KeyPath, found: _Found) -> None:
    if id(node) in found.walked:
        return
    if len(path) > DEEPEST:
        raise RecursionError
    found.walked.add(id(node))
    flow = bool(getattr(node, "flow_style", False))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            found.entries[(*path, str(i))] = Entry(_span(item), flow=flow)
            _walk(item, (*path, str(i)), found)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, Span] = {}
        for key, value in node.value:
            name = key.value if isinstance(key.value, str) else ""
            keys, where = (*path, name), _span(key)
            if name in seen:
                found.duplicates.append(Duplicate(keys, seen[name], where))
            seen[name] = where
            found.entries[keys] = Entry(_span(value), where, flow)
            _walk(value, keys, found)


def _span(node: yaml.Node) -> Span:
    return Span(node.start_mark.index, node.end_mark.index)


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Trouble:
    mark = error.problem_mark or error.context_mark
    # Of what is missing at the end, the end is shown, and not the empty line behind it.
    at = min(mark.index if mark else 0, max(0, len(text.rstrip()) - 1))
    problem = error.problem or error.context or ""
    if text[at : at + 1] == "\t":
        return Trouble(say("a tab; YAML is indented with spaces"), at, say("replace the tab by two spaces"))
    return Trouble(say("this is not YAML: {problem}", problem=problem), at)


def _character(error: yaml.reader.ReaderError, text: str) -> Trouble:
    at = min(error.position, max(0, len(text) - 1))
    return Trouble(say("a control character, which YAML does not allow"), at, say("delete it"))


def _kind(node: yaml.Node | None) -> Message:
    if node is None:
        return say("the file is empty")
    if isinstance(node, yaml.SequenceNode):
        return say("the file holds a list, not keys with values")
    return say("the file holds one value, not keys with values")
