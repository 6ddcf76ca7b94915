"""What the launchers of a run tell each other while it goes on, with checked types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trainwiz.network.messages import InvalidMessage, Rank

_MOST_MACHINES = 1 << 12
_MOST_RANKS = 1 << 17
Words = Annotated[str, Field(max_length=1 << 12)]
Number = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Digits = Annotated[str, Field(pattern=r"^\d{1,7}$")]
"""A rank as a key of JSON."""


_LATE = ConfigDict(defer_build=True)
"""A launch on a single machine imports this and checks no message."""


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", **_LATE)


class Ready(_Checked):
    """A machine waits for orders."""

    ready: Literal[True]
    """That it does."""


class Built(_Checked):
    """A machine has built what its ranks need."""

    built: Literal[True]
    """That it has."""


class Unable(_Checked):
    """A machine cannot start."""

    problem: Words
    """Why."""


class Report(_Checked):
    """How a machine's part of an attempt ended."""

    attempt: Number
    """The attempt's number."""
    exit_code: Number
    """Its exit code."""
    codes: Annotated[dict[Digits, Number | None], Field(max_length=_MOST_RANKS)] = {}
    """The exit code of each of its ranks; None for a rank that did not end."""
    first_failed: Rank | None = None
    """Its rank that failed first."""
    culprits: Annotated[list[Rank], Field(max_length=_MOST_RANKS)] = []
    """Its ranks that failed by themselves."""
    stopped: bool = False
    """Whether they ended in order, as they were asked to."""
    hung: bool = False
    """Whether they were ended because they hung."""
    leaving: bool = False
    """Whether the machine was asked to stop."""


class _Split(_Checked):
    micro: Count
    accumulation: Count
    world: Count


class _Formation(_Checked):
    attempt: Number
    machines: Annotated[list[Rank], Field(min_length=1, max_length=_MOST_MACHINES)]
    port: Annotated[int, Field(ge=1, lt=1 << 16)]
    batch: _Split
    resume: bool


class _Start(_Checked):
    do: Literal["start"]
    formation: _Formation


class _End(_Checked):
    do: Literal["end"]
    attempt: Number


class _Over(_Checked):
    do: Literal["over"]
    exit_code: Number
    first_failed: Rank | None
    machine: Annotated[tuple[Rank, Words], Field(strict=False)] | None
    lost: Annotated[dict[Digits, Words], Field(max_length=_MOST_MACHINES)]
    stopped: bool


class _Dropped(_Checked):
    do: Literal["dropped"]


class _Go(_Checked):
    do: Literal["go"]


class _Unable(_Checked):
    do: Literal["unable"]
    machine: Rank
    host: Words
    problem: Words


_ORDERS: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Start | _End | _Over | _Dropped | _Go | _Unable, Field(discriminator="do")], config=_LATE
)
_REPORTS: TypeAdapter[Any] = TypeAdapter(Ready | Built | Unable | Report, config=_LATE)


def order(said: dict[str, Any], rank: int) -> dict[str, Any]:
    """What machine 0 tells the machine of this rank. Raises `InvalidMessage`."""
    found = _checked(_ORDERS, said)
    if found["do"] == "start" and rank not in found["formation"]["machines"]:
        raise InvalidMessage("an attempt without this machine")
    return found


def report(said: dict[str, Any]) -> dict[str, Any]:
    """What another machine tells machine 0. Raises `InvalidMessage`."""
    return _checked(_REPORTS, said)


def _checked(kind: TypeAdapter[Any], said: dict[str, Any]) -> dict[str, Any]:
    try:
        kind.validate_python(said)
    except (ValidationError, RecursionError):
        raise InvalidMessage("no order") from None
    return said
