"""Options that are not converted by pydantic, which takes 0.1 s to import.

From 0.27 on typer builds a pydantic adapter for every option, given or not. A text needs no conversion, and trainwiz
checks values itself, by the plan's types; a default has its type already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TEXTS = (str, list[str])
_NUMBERS = (int, float)


# docs/decisions/cli.md: Text options bypass typer's conversion
def install(command: Any) -> None:
    """Let a command and its subcommands take their options as they are. Older typers are left alone."""
    for parameter in command.params:
        annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        if parameter.callback is not None or parameter.required:
            continue
        if annotation in _TEXTS:
            parameter.process_value = _as_list if annotation is not str else _as_typed
        elif annotation in _NUMBERS:
            parameter.process_value = _unless_given(annotation, parameter.process_value)
    _install_help(command)
    for subcommand in getattr(command, "commands", {}).values():
        install(subcommand)


def _install_help(command: Any) -> None:
    make = command.get_help_option

    def get_help_option(context: Any) -> Any:
        option = make(context)
        if option is not None and "process_value" not in vars(option):
            # The help is shown after the conversion, which must take place.
            option.process_value = _unless_given(None, option.process_value)
        return option

    command.get_help_option = get_help_option


def _as_typed(_context: Any, value: Any) -> Any:
    return value


def _as_list(_context: Any, value: Any) -> Any:
    return list(value or ())


def _unless_given(kind: type | None, full: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    # What was typed is a text; everything else is the default.
    return lambda context, value: value if value is None or type(value) is kind else full(context, value)
