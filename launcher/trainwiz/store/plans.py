"""Reading plans: YAML with its mistakes explained, by file, line and column."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainwiz import plan as plans
from trainwiz.errors import PlanError, UsageError
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.render import PLAN_FILE


def find(folder: str | Path) -> Path:
    """The plan of a project: `folder/trainwiz.yaml`, or `folder` itself where it is a file. Raises `UsageError`."""
    path = Path(folder)
    if path.is_file():
        return path
    if (path / PLAN_FILE).is_file():
        return path / PLAN_FILE
    if not path.exists():
        raise UsageError(
            say("there is no folder {folder}", folder=path),
            say("`trainwiz init {folder}` makes a project there", folder=path),
        )
    raise UsageError(
        say("{folder} holds no {file}, so it is not a project", folder=path, file=PLAN_FILE),
        say("go into a project's folder or name it, or make one: trainwiz init {folder}", folder=path),
    )


def read(path: str | Path) -> Plan:
    """The plan in a file. Raises `UsageError` where it is not YAML, `PlanError` naming every wrong value."""
    source = str(path)
    values, lines = read_yaml(path)
    try:
        return plans.parse(values, source)
    except PlanError as error:
        raise PlanError([_located(problem, lines) for problem in error.problems], source) from None


def reasons(text: str) -> dict[str, str]:
    """The comment behind each value of a plan's text, by dotted key: why it is as it is. Nothing of what is no YAML."""
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return dict(_comments(node, "", text.splitlines())) if isinstance(node, yaml.MappingNode) else {}


def read_yaml(path: str | Path) -> tuple[dict[str, Any], dict[str, int]]:
    """A file's values, and the line of each dotted key. Raises `UsageError` for everything that is not a mapping."""
    source, text = str(path), _text(Path(path))
    try:
        # Not libyaml: ten times as fast, but deep nesting ends the process there.
        node = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(
                say(
                    "{file} must hold keys with values, like `seed: 42`; it holds {kind}", file=source, kind=_kind(node)
                )
            )
        lines = dict(_key_lines(node, "", source))
        values: dict[str, Any] = yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, source) from None
    except yaml.reader.ReaderError as error:
        raise UsageError(
            say("{file}: character {position} is a control character", file=source, position=error.position)
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(say("{file}: {problem}", file=source, problem=str(error))) from None
    return values, lines


def edited(path: str | Path, changes: Mapping[str, Any], *, comment: str) -> str:
    """A plan's text with values changed where they stand; all else, comments and order, stays.

    A changed value gets the comment in place of its reason; a key that is not there is added to its section.
    Raises `UsageError` for a file that is written in a way that cannot be changed so.
    """
    before = text = _text(Path(path))
    try:
        for key, value in changes.items():
            text = _edited(text, key, yaml.safe_dump(value).splitlines()[0], comment)
        wanted = plans.with_changes(plans.parse(yaml.safe_load(before)), changes)
        done = plans.parse(yaml.safe_load(text)) == wanted
    except yaml.YAMLError:
        done = False
    if not done:
        raise UsageError(
            say("{file} cannot be changed where it stands", file=path),
            say("write its sections as keys below each other, as trainwiz init does"),
        )
    return text


def _edited(text: str, key: str, value: str, comment: str) -> str:
    *sections, name = key.split(".")
    node: Any = yaml.compose(text, yaml.SafeLoader)
    for section in sections:
        held = {k.value: v for k, v in node.value} if node else {}
        if section not in held:
            return f"{text.rstrip()}\n\n{section}:\n  {name}: {value}  # {comment}\n"
        node = held[section]
    for k, v in node.value if isinstance(node, yaml.MappingNode) else ():
        if k.value == name:
            end = text.find("\n", v.end_mark.index)
            end = len(text) if end < 0 or node.flow_style else end
            rest = text[v.end_mark.index :] if node.flow_style else text[end:]
            return f"{text[: v.start_mark.index]}{value}" + ("" if node.flow_style else f"  # {comment}") + rest
    if not isinstance(node, yaml.MappingNode):
        return text
    first = node.value[0][0].start_mark
    if node.flow_style:
        return f"{text[: first.index]}{name}: {value}, {text[first.index :]}"
    indent = " " * first.column
    return f"{text[: first.index]}{name}: {value}  # {comment}\n{indent}{text[first.index :]}"


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            say(
                "{file}: line {line} is not UTF-8 text: it holds the byte {byte}",
                file=path,
                line=error.object.count(b"\n", 0, error.start) + 1,
                byte=f"0x{error.object[error.start]:02x}",
            ),
            say("save it as UTF-8"),
        ) from None
    except OSError as error:
        raise UsageError(say("{file} cannot be read: {problem}", file=path, problem=error.strerror)) from None


def _key_lines(node: yaml.MappingNode, prefix: str, source: str) -> Iterator[tuple[str, int]]:
    seen: dict[Hashable, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise UsageError(
                    say(
                        "{file}: {key} stands twice, in lines {first} and {second}",
                        file=source,
                        key=f"{prefix}{key.value}",
                        first=seen[key.value],
                        second=line,
                    ),
                    say("delete one of them"),
                )
            seen[key.value] = line
            yield f"{prefix}{key.value}", line
            if isinstance(value, yaml.MappingNode):
                yield from _key_lines(value, f"{prefix}{key.value}.", source)


def _comments(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for key, value in node.value:
        if isinstance(value, yaml.MappingNode):
            yield from _comments(value, f"{prefix}{key.value}.", lines)
        line = lines[value.end_mark.line] if value.end_mark.line < len(lines) else ""
        behind = line[value.end_mark.column :].strip()
        if behind.startswith("#") and value.end_mark.line == key.start_mark.line:
            yield f"{prefix}{key.value}", behind[1:].strip()


def _syntax_error(error: yaml.MarkedYAMLError, source: str) -> UsageError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    if error.problem and "'\\t'" in error.problem:
        message = say(
            "{file}:{line}:{column}: a tab; YAML is indented with spaces", file=source, line=line, column=column
        )
        return UsageError(message, say("replace the tab by two spaces"))
    return UsageError(
        say(
            "{file}:{line}:{column}: this is not YAML: {problem}",
            file=source,
            line=line,
            column=column,
            problem=error.problem or error.context,
        )
    )


def _located(problem: Message, lines: dict[str, int]) -> Message:
    line = lines.get(str(problem.values.get("key")))
    return say("line {line}: {problem}", line=line, problem=problem) if line else problem


def _kind(node: yaml.Node | None) -> Message:
    if node is None:
        return say("nothing")
    return say("a list") if isinstance(node, yaml.SequenceNode) else say("one value")
