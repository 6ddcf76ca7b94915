"""What rules on several tools' files say alike."""

from __future__ import annotations

from typing import Any

import yaml

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Violation, remedy, safe, violation


def shown(value: Any) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def clash(tool_file: ToolFile, key: str, other: str) -> Violation:
    """Two settings of which the tool takes only one."""
    return violation(
        "{key}: {value} cannot be combined with {other}: {other_value}; {name} stops",
        remedy("remove {key} or {other}", key=key, other=other),
        where=key,
        key=key,
        value=shown(tool_file.get(key)),
        other=other,
        other_value=shown(tool_file.get(other)),
        name=tool_file.name,
    )


def lacking(tool_file: ToolFile, key: str, needed: str, *, meant: bool = False) -> Violation:
    """A setting without another one that the tool demands with it.

    It may be set without a question where it is surely `meant`: the tool's own code was given both files.
    """
    changes = _demanded(tool_file, needed)
    return violation(
        "{key}: {value} needs {needed}; {name} stops without it",
        safe(remedy("set {needed}", changes, needed=needed))
        if meant
        else remedy("set {needed}, or remove {key}", changes, needed=needed, key=key),
        where=key,
        key=key,
        value=shown(tool_file.get(key)),
        needed=needed,
        name=tool_file.name,
    )


def _demanded(tool_file: ToolFile, needed: str) -> dict[str, Any]:
    """The change that sets what is demanded; empty where any value may do, and in commands, which are not edited."""
    key, _, value = needed.partition(": ")
    return {key: yaml.safe_load(value)} if value and tool_file.document.syntax in ("json", "yaml") else {}
