"""How the fields of a request are typed on the command line. `cli` makes an option of each, so that it stands once."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from trainwiz.message import Message


def argument(metavar: str, help: Message, default: Any = "") -> Any:
    """A field that is typed without a name."""
    return field(default=default, metadata={"names": None, "metavar": metavar, "help": help})


def flag(help: Message, names: str = "") -> Any:
    """A field that is true where it is typed. `names` are those of the option where they differ from the field's."""
    return field(default=False, metadata={"names": names, "help": help})


def option(metavar: str, help: Message, default: Any = "", *, names: str = "", min: float | None = None) -> Any:
    """A field that has the value typed behind its name. A tuple collects the values of all of them."""
    return field(default=default, metadata={"names": names, "metavar": metavar, "help": help, "min": min})
