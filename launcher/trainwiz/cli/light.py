"""Options without the detour through pydantic: texts as they were typed, and what was not given as it is.

typer builds a pydantic adapter for every option from 0.27 on, given or not: 0.1 s before the first question. A text
needs no conversion, and trainwiz checks values itself, by the plan's types; a default has its type already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TEXTS = (str, list[str])
_NUMBERS = (int, float)


def lighten(command: Any) -> Any:
    """The command with its options taken lightly, subcommands included. Older typers are left alone."""
    for parameter in command.params:
        annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        if parameter.callback is not None or parameter.required:
            continue
        if annotation in _TEXTS:
            parameter.process_value = _as_list if annotation is not str else _as_typed
        elif annotation in _NUMBERS:
            parameter.process_value = _unless_given(annotation, parameter.process_value)
    _lighten_help(command)
    for subcommand in getattr(command, "commands", {}).values():
        lighten(subcommand)
    return command


def _lighten_help(command: Any) -> None:
    make = command.get_help_option

    def get_help_option(context: Any) -> Any:
        option = make(context)
        if option is not None and "process_value" not in vars(option):
            # The help itself is shown by what follows the conversion.
            option.process_value = _unless_given(None, option.process_value)
        return option

    command.get_help_option = get_help_option


def _as_typed(_context: Any, value: Any) -> Any:
    return value


def _as_list(_context: Any, value: Any) -> Any:
    return list(value or ())


def _unless_given(kind: type | None, full: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    # What stands on the command line is a text; whatever is not one is the default.
    return lambda context, value: value if value is None or type(value) is kind else full(context, value)
