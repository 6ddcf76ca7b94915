"""What becomes of each value of a file: carried into the plan, the same anyway, or left, with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trainwiz.config import Accelerate, DeepSpeed, Document
    from trainwiz.finding import Place
    from trainwiz.message import Message

Kind = Literal["open", "launch", "lost", "inert", "unknown"]
"""Why a value is left: only the script could tell it; it is given at the launch; a project cannot have it; the engine
ignores it as well; nothing in a plan means it, and nothing can be written until somebody decides."""


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A value for a key of the plan; `why` says where it comes from if it does not stand in the file."""

    value: Any
    place: Place
    path: str
    why: Message | None = None


@dataclass(frozen=True, kw_only=True)
class Left:
    """A value that does not become part of the plan. `key` is the plan's key that holds another one in its place."""

    kind: Kind
    path: str
    value: str
    place: Place
    why: Message
    key: str | None = None


class Ledger:
    """Every value of a file is entered here once."""

    def __init__(self) -> None:
        self.carried: dict[str, Carried] = {}
        self.left: list[Left] = []
        self._seen: set[tuple[str, str]] = set()

    def copy(self) -> Ledger:
        """Another one with the same entries."""
        other = Ledger()
        other.carried, other.left, other._seen = dict(self.carried), list(self.left), set(self._seen)
        return other

    def carry(self, file: Accelerate | DeepSpeed, path: str, key: str, value: Any, why: Message | None = None) -> None:
        """The plan's key takes a value; the first one counts."""
        self.same(file, path)
        place = place_of(file.document, path)
        self.carried.setdefault(key, Carried(value=value, place=place, path=path, why=why))

    def same(self, file: Accelerate | DeepSpeed, path: str) -> None:
        """Nothing is to be said of a value: the project does the same."""
        value = file.get(path)
        # A block is not known with one of its keys, nor with one that it leaves out.
        if not (isinstance(value, Mapping) and value):
            self._seen.add((file.document.path, path))

    def leave(
        self,
        file: Accelerate | DeepSpeed,
        path: str,
        kind: Kind,
        why: Message,
        *,
        key: str | None = None,
        value: str | None = None,
    ) -> None:
        """A value that does not fit, or one that the file leaves out and the project does otherwise."""
        if self.knows(file, path):
            return
        self.same(file, path)
        shown = value if value is not None else raw(file.document, path)
        place = place_of(file.document, path)
        self.left.append(Left(kind=kind, path=path, value=shown, place=place, why=why, key=key))

    def fill(self, key: str, value: Any, place: Place, path: str, why: Message | None) -> None:
        """A key that no file decides takes what the script says, and is open no longer."""
        if key not in self.carried:
            self.carried[key] = Carried(value=value, place=place, path=path, why=why)
            self.settle(key)

    def replace(self, key: str, value: Any, place: Place, path: str, why: Message | None, lost: Message) -> None:
        """A key takes what the script says, and what the file says for it does nothing."""
        old = self.carried.pop(key)
        self.left.append(Left(kind="inert", path=old.path, value=str(old.value), place=old.place, why=lost))
        self.carried[key] = Carried(value=value, place=place, path=path, why=why)

    def settle(self, key: str) -> None:
        """Nothing is open about a key any more."""
        self.left = [one for one in self.left if not (one.kind == "open" and one.key == key)]

    def open(self, key: str, path: str, value: str, place: Place, why: Message) -> None:
        """A key that the script decides in a way that cannot be read: what is left open about it, is so for this."""
        if key not in self.carried:
            self.settle(key)
            self.add("open", path, value, place, why, key=key)

    def add(self, kind: Kind, path: str, value: str, place: Place, why: Message, *, key: str | None = None) -> None:
        """Something of the script that does not become part of the plan."""
        self.left.append(Left(kind=kind, path=path, value=value, place=place, why=why, key=key))

    def knows(self, file: Accelerate | DeepSpeed, path: str) -> bool:
        """Whether a value has been entered, alone or with the block it stands in."""
        parts = path.split(".")
        return any((file.document.path, ".".join(parts[:n])) in self._seen for n in range(1, len(parts) + 1))


def leaves(document: Document) -> Iterator[tuple[str, Any]]:
    """Every value of a file that is no block, by its dotted path; a list counts as one value."""
    yield from _leaves(document.values, "")


def _leaves(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def place_of(document: Document, path: str) -> Place:
    """Where a value stands; the nearest block above it where it is left out."""
    place = document.place(path)
    assert place is not None
    return place


def raw(document: Document, path: str) -> str:
    """A value as it is written, on one line."""
    return " ".join(document.raw(path).split()) if document.has(path) else ""
