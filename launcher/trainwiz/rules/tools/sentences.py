"""What rules on several tools' files say alike."""

from __future__ import annotations

from typing import Any

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Violation, remedy, violation


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


def lacking(tool_file: ToolFile, key: str, needed: str) -> Violation:
    """A setting without another one that the tool demands with it."""
    return violation(
        "{key}: {value} needs {needed}; {name} stops without it",
        remedy("set {needed}, or remove {key}", needed=needed, key=key),
        where=key,
        key=key,
        value=shown(tool_file.get(key)),
        needed=needed,
        name=tool_file.name,
    )
