"""Texts on the command line as they were typed, without the detour through pydantic.

typer builds a pydantic adapter for every option from 0.27 on, given or not: 0.1 s before the first question. A text
needs no conversion, and trainwiz checks values itself, by the plan's types.
"""

from __future__ import annotations

from typing import Any

_TEXTS = (str, list[str])


def lighten(command: Any) -> Any:
    """The command with its text options taken as they are, subcommands included. Older typers are left alone."""
    for parameter in command.params:
        annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        if annotation in _TEXTS and parameter.callback is None and not parameter.required:
            parameter.process_value = _as_list if annotation is not str else _as_typed
    _lighten_help(command)
    for subcommand in getattr(command, "commands", {}).values():
        lighten(subcommand)
    return command


def _lighten_help(command: Any) -> None:
    make = command.get_help_option

    def get_help_option(context: Any) -> Any:
        option = make(context)
        if option is not None and "process_value" not in vars(option):
            full = option.process_value
            # Not given: there is nothing to convert, and nothing to show.
            option.process_value = lambda context, value: None if value is None else full(context, value)
        return option

    command.get_help_option = get_help_option


def _as_typed(_context: Any, value: Any) -> Any:
    return value


def _as_list(_context: Any, value: Any) -> Any:
    return list(value or ())
