"""The options of a command: one for each field of its request that says how it is typed."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from trainwiz.language import text

Request = TypeVar("Request")
ARGUMENTS = "trainwiz.arguments"


class Command(TyperCommand):
    """Keeps the arguments of the training script apart: all after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the command line before typer sees it."""
        ours = args[: args.index("--")] if "--" in args else args
        ctx.meta[ARGUMENTS] = {"arguments": tuple(args[len(ours) + 1 :])}
        return super().parse_args(ctx, ours)


def taking(request: type[Request]) -> Callable[[Callable[[Request], int | None]], Callable[..., int | None]]:
    """Show typer the fields of a request as the command's parameters; call the command with what was typed."""
    types = typing.get_type_hints(request)
    fields = [field for field in dataclasses.fields(request) if field.metadata]  # type: ignore[arg-type]
    several = [field.name for field in fields if typing.get_origin(types[field.name]) is tuple]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *(_parameter(field, types[field.name]) for field in fields)]

    def taken(command: Callable[[Request], int | None]) -> Callable[..., int | None]:
        def typed(ctx: typer.Context, **values: Any) -> int | None:
            values |= {name: tuple(values[name] or ()) for name in several}
            return command(request(**values, **ctx.meta.get(ARGUMENTS, {})))

        shown: Any = typed
        shown.__signature__ = inspect.Signature(parameters)
        shown.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return shown  # type: ignore[no-any-return]

    return taken


def _parameter(field: dataclasses.Field[Any], kind: Any) -> inspect.Parameter:
    names, help, metavar = field.metadata["names"], text(field.metadata["help"]), field.metadata.get("metavar")
    info: Any
    if names is None:
        info = typer.Argument(metavar=metavar, help=help)
    else:
        typed = names.split() or [f"--{field.name.replace('_', '-')}"]
        info = typer.Option(*typed, metavar=metavar, min=field.metadata.get("min"), help=help)
    several = typing.get_origin(kind) is tuple
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if several else field.default,
        annotation=Annotated[list[str] | None if several else kind, info],
    )
