"""What machines say to each other in the roll-call: checked types, bounded lines, and proof that they know the secret.

The listening machine sends a nonce. The other answers with its own nonce, what it says, and the HMAC of all three under
the launch's secret; the verdict comes back the same way. Nobody without the secret is heard or believed, and nothing
that was recorded can be said again.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LONGEST_GREETING = 1 << 14
"""Bytes of what a machine says of itself."""
LONGEST_VERDICT = 1 << 24
"""Bytes of what machine 0 answers: about a thousand machines' words."""
LONGEST_PROBLEM = 1000
"""Characters of why a machine cannot start."""
_MOST_FACTS = 64
_COST = {"n": 1 << 14, "r": 8, "p": 1}
"""Of scrypt, about 50 ms: a typed secret is short, and who hears the roll-call can try words at leisure."""

Name = Annotated[str, Field(max_length=256)]
Rank = Annotated[int, Field(ge=0, le=1 << 20)]
_Host = Annotated[tuple[Rank, Name], Field(strict=False)]
Said = TypeVar("Said", bound=BaseModel)


class InvalidMessage(ValueError):
    """Something that is not a message, or whose sender does not know the secret."""


class _Checked(BaseModel):
    # Built late: a launch on a single machine imports this and checks no message.
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)


class Machine(_Checked):
    """One machine, by its own account."""

    rank: Rank
    """Its rank among the machines."""
    hostname: Name
    """The name of its host."""
    plan: Name
    """The digest of its plan."""
    machines: Rank
    """How many machines its plan has."""
    facts: Annotated[dict[Name, Name], Field(max_length=_MOST_FACTS)] = {}
    """What must be the same on all machines: digests of code and data, versions."""
    apart: bool = False
    """Whether it does not see what machine 0 has written in the project's folder."""
    problem: Annotated[str, Field(max_length=LONGEST_PROBLEM)] = ""
    """Why it cannot start; empty where it can."""
    stays: bool = False
    """Whether the connection is to stay open, for orders."""
    run: Name = ""
    """The run that it takes part in, once it knows that."""
    key: Name = Field(default_factory=lambda: uuid.uuid4().hex)
    """Tells two processes on the same host apart."""


class Verdict(_Checked):
    """What machine 0 heard."""

    key: Name
    """That of machine 0."""
    machines: Rank
    """How many machines its plan has."""
    plan: Name
    """The digest of its plan."""
    facts: Annotated[dict[Name, Name], Field(max_length=_MOST_FACTS)]
    """Its own facts."""
    present: Annotated[list[Machine], Field(max_length=1 << 12)]
    """The machines that answered and are unlike machine 0 in something."""
    alike: Annotated[list[_Host], Field(max_length=1 << 12)] = []
    """Rank and host of those that are like it; a thousand machines hear of all others."""
    least: Rank
    """With how many machines it begins; fewer than those of its plan where the training is elastic."""
    agreed: Annotated[dict[Name, Name], Field(max_length=_MOST_FACTS)]
    """What it tells the others if all is well."""


class _Envelope(_Checked):
    nonce: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    body: dict[str, Any] = {}
    mac: Annotated[str, Field(max_length=64)] = ""


def nonce() -> str:
    """A number that was never used before."""
    return secrets.token_hex(16)


def challenge(own: str) -> bytes:
    """The line with which the listening machine begins."""
    return _line({"nonce": own})


def challenged(line: bytes) -> str:
    """The nonce in such a line. Raises `InvalidMessage`."""
    return _read(_Envelope, _parsed(line)).nonce


@dataclass(frozen=True)
class Encoded:
    """A message, encoded once for many receivers."""

    body: str
    """The message as JSON."""
    digest: str
    """What the signature covers."""


def encoded(value: BaseModel) -> Encoded:
    """Encode a message once, for all its receivers."""
    body = value.model_dump(mode="json")
    return Encoded(json.dumps(body), _digest(body))


def signed(said: BaseModel | Encoded, *, secret: str, own: str, theirs: str) -> bytes:
    """A line with what is said, for the one who sent the nonce `theirs`."""
    said = said if isinstance(said, Encoded) else encoded(said)
    head = json.dumps({"nonce": own, "mac": _mac(secret, theirs, own, said.digest)})
    return f'{head[:-1]}, "body": {said.body}}}\n'.encode()


def checked(kind: type[Said], line: bytes, *, secret: str, own: str) -> tuple[Said, str]:
    """What was said in answer to the nonce `own`, and the sender's nonce. Raises `InvalidMessage`."""
    envelope = _read(_Envelope, _parsed(line))
    if envelope.nonce == own or not hmac.compare_digest(
        envelope.mac.encode(), _mac(secret, own, envelope.nonce, _digest(envelope.body)).encode()
    ):
        raise InvalidMessage("another secret")
    return _read(kind, envelope.body), envelope.nonce


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _mac(secret: str, theirs: str, own: str, digest: str) -> str:
    said = json.dumps([theirs, own, digest])
    return hmac.new(_key(secret), said.encode(), hashlib.sha256).hexdigest()


@functools.lru_cache(maxsize=4)
def _key(secret: str) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=b"trainwiz roll-call", **_COST)


def _read(kind: type[Said], value: object) -> Said:
    try:
        return kind.model_validate(value)
    except (ValidationError, RecursionError):
        raise InvalidMessage(kind.__name__) from None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidMessage("no message") from None


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
