"""YAML as PyYAML's safe loader reads it, which is how accelerate reads it, with positions from its node graph."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from trainwiz.config.document import BYTE_ORDER_MARK, DEEPEST, Document, Duplicate, Entry, KeyPath, Problem, Span
from trainwiz.message import Message, say

# The C parser is ten times as fast; not every PyYAML has it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_LIST = re.compile(r"^kind: *[\"']?\w*List\b", re.MULTILINE)
_MANY = 1000
"""Marks that open a level. The C parser ends the process where a text with tens of thousands nests them all."""
_LONG = 1000
"""Digits of a number that no file needs."""
_MOST_VALUES = 100_000
"""In a few lines, aliases of aliases can stand for billions of values, each of which would be built."""


@dataclass
class _Found:
    before: int
    """Characters of the file before the text that was parsed: 1 for a byte order mark."""
    entries: dict[KeyPath, Entry] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    walked: set[int] = field(default_factory=set)
    """Nodes by identity: an anchor may contain itself, or be used a thousand times."""

    def span(self, node: yaml.Node) -> Span:
        return Span(node.start_mark.index + self.before, node.end_mark.index + self.before)


def read(path: str, text: str) -> Document:
    """The document in a text; with its `problem` where the text cannot be read."""
    bare = text.removeprefix(BYTE_ORDER_MARK)
    before = len(text) - len(bare)
    found, node, loader, more = _Found(before), None, None, []
    try:
        if (bomb := _bomb(bare)) is not None:
            return _unreadable(path, text, Problem(bomb.message, before + bomb.at, bomb.fix))
        loader = _Loader(bare)
        first, *others = _jobs(bare) or (None,)
        for node in others:
            _walk(node, (), other := _Found(before))
            more.append(_document(path, text, loader.construct_document(node), other))
        node = first or loader.get_single_node()
        values = loader.construct_document(node) if node is not None else None
        _walk(node, (), found)
    except yaml.MarkedYAMLError as error:
        return _unreadable(path, text, _syntax(error, text, found.before))
    except yaml.reader.ReaderError:
        return _unreadable(path, text, _character(text))
    except RecursionError:
        return _unreadable(path, text, Problem(say("brackets are nested too deeply")))
    except (ValueError, TypeError, AttributeError) as error:
        wrong = _unconstructed(node)
        return _unreadable(
            path, text, Problem(say("{problem}", problem=error), found.span(wrong).start if wrong else 0)
        )
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        return _unreadable(path, text, Problem(_kind(node), fix=say("write keys with values, like `key: value`")))
    return replace(_document(path, text, values, found), more=tuple(more))


def _document(path: str, text: str, values: Any, found: _Found) -> Document:
    return Document(
        path=path, text=text, syntax="yaml", values=values, entries=found.entries, duplicates=tuple(found.duplicates)
    )


def _jobs(text: str) -> list[yaml.Node]:
    """The jobs among Kubernetes' objects, or among SkyPilot's tasks, in one file; empty where the file is no such file.

    Jobs of a kind of their own, as Kubeflow's are, come before plain ones.
    """
    if "\n---" not in text and not _LIST.search(text):
        return []
    nodes = [item for node in yaml.compose_all(text, _Loader) for item in _items(node)]
    if "apiVersion" not in text:
        return [node for node in nodes if _value(node, "run") and _value(node, "resources")]
    jobs = [node for node in nodes if _kind_of_object(node).endswith("Job")]
    return sorted(jobs, key=lambda node: _kind_of_object(node) == "Job")


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    """The objects of a list of objects; any other node alone."""
    items = _value(node, "items") if _kind_of_object(node).endswith("List") else None
    return list(items.value) if isinstance(items, yaml.SequenceNode) else [node] if node is not None else []


def _kind_of_object(node: yaml.Node | None) -> str:
    kind = _value(node, "kind")
    return str(kind.value) if kind is not None else ""


def _value(node: yaml.Node | None, name: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == name), None)


def _unreadable(path: str, text: str, problem: Problem) -> Document:
    return Document(path=path, text=text, syntax="yaml", problem=problem)


@dataclass
class _Size:
    """What a node becomes with each alias in it replaced by what it stands for."""

    values: int = 1
    """The values in it, and itself."""
    depth: int = 0
    """The levels in it."""
    anchor: str | None = None
    """The name under which it can be used again."""

    def add(self, child: _Size) -> None:
        self.values += child.values
        self.depth = max(self.depth, child.depth + 1)


def _bomb(text: str) -> Problem | None:
    """Why a loader must not try to build a text's values: too deep for a recursive one, or too many by aliases."""
    if "*" not in text and len(text) < _MOST_VALUES and sum(text.count(mark) for mark in "[{-?") < _MANY:
        return None
    open_nodes, anchors = [_Size()], dict[str, _Size]()
    for event in yaml.parse(text, _Loader):
        at = event.start_mark.index if event.start_mark else 0
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append(_Size(anchor=event.anchor))
            ended = None
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = open_nodes.pop()
        elif isinstance(event, yaml.AliasEvent):
            ended = anchors.get(event.anchor or "", _Size())
        elif isinstance(event, yaml.ScalarEvent):
            ended = _Size(anchor=event.anchor)
        else:
            continue
        if ended is not None:
            open_nodes[-1].add(ended)
            anchors |= {ended.anchor: ended} if ended.anchor else {}
        if len(open_nodes) + open_nodes[-1].depth > DEEPEST + 1:
            return Problem(say("brackets are nested too deeply"), at)
        if open_nodes[-1].values > _MOST_VALUES:
            message = say("more than {n} values, counting each alias (*) as what it stands for", n=_MOST_VALUES)
            return Problem(message, at)
    return None


def _unconstructed(node: yaml.Node | None) -> yaml.Node | None:
    """The first scalar that makes no value, like the month 13; None where it cannot be told."""
    constructor, waiting, walked = yaml.constructor.SafeConstructor(), [node], set()
    while waiting:
        here = waiting.pop()
        if isinstance(here, yaml.ScalarNode):
            try:
                _shown(constructor.construct_object(here))
            except (ValueError, TypeError, AttributeError):
                return here
        elif here is not None and id(here) not in walked:
            walked.add(id(here))
            children = [part for item in here.value for part in (item if isinstance(item, tuple) else (item,))]
            waiting += reversed(children)
    return None


def _shown(value: object) -> str:
    """A value as text. Raises `ValueError` for long numbers, which Python reads where they are hexadecimal."""
    return str(value)


def _walk(node: yaml.Node | None, path: KeyPath, found: _Found) -> None:
    if id(node) in found.walked:
        return
    if len(path) > DEEPEST:
        raise RecursionError
    found.walked.add(id(node))
    flow = bool(getattr(node, "flow_style", False))
    if isinstance(node, yaml.ScalarNode) and len(node.value) > _LONG and node.tag.endswith(":int"):
        _shown(yaml.constructor.SafeConstructor().construct_object(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            found.entries[(*path, str(i))] = Entry(found.span(item), flow=flow)
            _walk(item, (*path, str(i)), found)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, Span] = {}
        for key, value in node.value:
            name = key.value if isinstance(key.value, str) else ""
            keys, where = (*path, name), found.span(key)
            if name in seen:
                found.duplicates.append(Duplicate(keys, seen[name], where))
            seen[name] = where
            found.entries[keys] = Entry(found.span(value), where, flow)
            _walk(value, keys, found)


def _syntax(error: yaml.MarkedYAMLError, text: str, before: int) -> Problem:
    mark = error.problem_mark or error.context_mark
    # If something is missing at the end, show the end and not the empty line after it.
    at = min(before + (mark.index if mark else 0), max(0, len(text.rstrip()) - 1))
    problem = error.problem or error.context or ""
    if problem == "but found another document":
        return Problem(say("the file contains several documents; only one is allowed"), at)
    if text[at : at + 1] == "\t":
        return Problem(say("a tab; YAML is indented with spaces"), at, say("replace the tab with two spaces"))
    return Problem(say("not valid YAML: {problem}", problem=problem), at)


def _character(text: str) -> Problem:
    # The C parser's own position counts bytes.
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    at = found.start() if found else 0
    return Problem(say("a control character, which YAML does not allow"), at, say("delete it"))


def _kind(node: yaml.Node | None) -> Message:
    if node is None:
        return say("the file is empty")
    if isinstance(node, yaml.SequenceNode):
        return say("the file contains a list, not keys with values")
    return say("the file contains a single value, not keys with values")
