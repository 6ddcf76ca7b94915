"""What happens to each value of a file: carried over into the plan, the same in any case, or left out for a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainwiz.config import Accelerate, DeepSpeed, Document, ToolFile
from trainwiz.finding import Place
from trainwiz.message import Message, say

Kind = Literal["code", "open", "launch", "lost", "inert", "unknown"]
"""Why a value is left out.

code: it is to be written in task.py. open: only the script could tell it. launch: it is given at the launch. lost: a
project cannot have it. inert: the engine ignores it as well. unknown: no plan can say it, and nothing can be written
until somebody decides.
"""

EVALUATION = say("the project does not evaluate; set data.eval and write load_eval_data and the metrics in task.py")
"""What becomes of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A value that a key of the plan takes."""

    value: Any
    """The plan's value."""
    place: Place
    """Where the file or the script says it, or would say it."""
    path: str
    """The dotted path in the file, or the name in the script."""
    why: Message | None = None
    """Where the value comes from, if it is not written there."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A value that does not become part of the plan."""

    kind: Kind
    """Why, by kind."""
    path: str
    """The dotted path in the file, or the name in the script."""
    value: str
    """The value as it is written."""
    place: Place
    """Where it is."""
    why: Message
    """Why, in words."""
    key: str | None = None
    """The plan's key that has another value in its place."""


class Ledger:
    """A list with one entry for each value of the files and the script: what became of it."""

    def __init__(self) -> None:
        self.carried: dict[str, Carried] = {}
        self.left: list[Left] = []
        self.seen: set[tuple[str, str]] = set()

    def copy(self) -> Ledger:
        """Another one with the same entries."""
        other = Ledger()
        other.carried, other.left, other.seen = dict(self.carried), list(self.left), set(self.seen)
        return other

    def fill(self, key: str, value: Any, place: Place, path: str, why: Message | None) -> None:
        """Let the script decide a key that no file decides."""
        if key not in self.carried:
            self.carried[key] = Carried(value=value, place=place, path=path, why=why)
            self.settle(key)

    def replace(self, key: str, value: Any, place: Place, path: str, why: Message | None, lost: Message) -> None:
        """Let the script decide a key; what the file says for it has no effect."""
        old = self.carried.pop(key)
        self.add("inert", old.path, str(old.value), old.place, lost)
        self.carried[key] = Carried(value=value, place=place, path=path, why=why)

    def settle(self, key: str) -> None:
        """Remove what was open about a key."""
        self.left = [one for one in self.left if not (one.kind == "open" and one.key == key)]

    def open(self, key: str, path: str, value: str, place: Place, why: Message) -> None:
        """Record that the script decides a key in a way that cannot be read."""
        if key not in self.carried:
            self.settle(key)
            self.add("open", path, value, place, why, key=key)

    def add(self, kind: Kind, path: str, value: str, place: Place, why: Message, *, key: str | None = None) -> None:
        """Enter a value that does not become part of the plan."""
        self.left.append(Left(kind=kind, path=path, value=value, place=place, why=why, key=key))


@dataclass(frozen=True)
class Page:
    """The part of a ledger that is about one file."""

    ledger: Ledger
    """Where the entries go."""
    file: Accelerate | DeepSpeed | ToolFile
    """The file."""
    path_of: Callable[[str], str] = str
    """The dotted path in the file under which a name is written."""

    def carry(self, name: str, key: str, value: Any, why: Message | None = None) -> None:
        """Enter a value that a key of the plan takes; the first one counts."""
        self.same(name)
        path = self.path_of(name)
        place = place_of(self.file.document, path)
        self.ledger.carried.setdefault(key, Carried(value=value, place=place, path=path, why=why))

    def same(self, name: str) -> None:
        """Enter a value that needs no report: the project does the same."""
        path = self.path_of(name)
        value = self.file.get(path)
        # One key of a block, or one that it leaves out, says nothing about the rest of the block.
        if not (isinstance(value, Mapping) and value):
            self.ledger.seen.add((self.file.document.path, path))

    def leave(self, name: str, kind: Kind, why: Message, *, key: str | None = None, value: str | None = None) -> None:
        """Enter a value that does not fit, or one that the file leaves out and the project does otherwise."""
        if self.knows(name):
            return
        self.same(name)
        path = self.path_of(name)
        shown = value if value is not None else raw(self.file.document, path)
        self.ledger.add(kind, path, shown, place_of(self.file.document, path), why, key=key)

    def knows(self, name: str) -> bool:
        """Whether a value has been entered, alone or with its block."""
        parts = self.path_of(name).split(".")
        here = self.file.document.path
        return any((here, ".".join(parts[:n])) in self.ledger.seen for n in range(1, len(parts) + 1))


def leaves(document: Document) -> Iterator[tuple[str, Any]]:
    """Every value of a file that is not a block, by its dotted path; a list counts as one value."""
    yield from _leaves(document.values, "")


def _leaves(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def place_of(document: Document, path: str) -> Place:
    """The place of a value, or of the nearest block above it where it is left out."""
    place = document.place(path)
    assert place is not None
    return place


def raw(document: Document, path: str) -> str:
    """A value as it is written, on one line."""
    return " ".join(document.raw(path).split()) if document.has(path) else ""
