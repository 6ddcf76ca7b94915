"""What the variables and arrays of a shell script stand for, as far as the script alone says it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trainwiz.config.commands import Command, Word, words

_USE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::?-(?P<otherwise>[^{}]*))?\}|(?P<bare>\w+))")
_LOOP = re.compile(r"\bfor\s+(\w+)\s+in\b|\bread\s+(?:-\w+\s+)*(\w+)|\b(\w+)\+=")
_ARRAY = re.compile(r"(?m)^(?P<indent>[ \t]*)(?P<name>\w+)\+?=\((?P<inner>(?:[^()\"']|\"[^\"]*\"|'[^']*')*)\)")
_ALL = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_DEPTH = 8
"""A value that leads through more variables than this leads in a circle."""


@dataclass(frozen=True)
class Arrays:
    """The arrays of a script."""

    text: str
    """The script without them; everything else stands where it stood."""
    words: Mapping[str, Sequence[Word]]
    """The words of each, by its name."""
    perhaps: Mapping[str, Sequence[Word]]
    """What only some runs add to each, in a branch or a loop."""

    def spread(self, command: Iterable[Word]) -> list[Word]:
        """Words of a command with those that its arrays stand for."""
        spread: list[Word] = []
        for word in command:
            named = _ALL.fullmatch(word.text)
            spread += self.words.get(named[1], [word]) if named else [word]
        return spread


def arrays_of(text: str) -> Arrays:
    """The arrays that a script assigns: `ARGS=(--lr 1e-4)`."""
    found: dict[str, list[Word]] = {}
    perhaps: dict[str, list[Word]] = {}
    for array in _ARRAY.finditer(text):
        inner = [
            replace(
                word,
                span=replace(
                    word.span, start=word.span.start + array.start("inner"), end=word.span.end + array.start("inner")
                ),
            )
            for word in words(array["inner"])
        ]
        (perhaps if array["indent"] else found).setdefault(array["name"], []).extend(inner)
    bare = _ARRAY.sub(lambda array: re.sub(r"[^\n]", " ", array[0]), text)
    return Arrays(text=bare, words=found, perhaps=perhaps)


def variables_of(text: str, commands: Iterable[Command]) -> dict[str, str]:
    """The variables that have one value throughout a script; those that a loop or a branch changes have several."""
    values: dict[str, set[str]] = {}
    for command in commands:
        for name, value in command.assignments.items():
            if name and (not command.words or name.isupper()):
                values.setdefault(name, set()).add(value)
    changed = {name for found in _LOOP.findall(text) for name in found if name}
    return {name: next(iter(said)) for name, said in values.items() if len(said) == 1 and name not in changed}


def expanded(text: str, variables: Mapping[str, str], used: set[str]) -> str:
    """A word with the values of its variables; unchanged where one of them is not known. `used` gets their names."""
    found: set[str] = set()
    said: str | None = text
    for _ in range(_DEPTH):
        if said is None or not _USE.search(said):
            break
        said = _once(said, variables, found)
    if said is None or "$" in said or "`" in said:
        return text
    used |= found
    return said


def _once(text: str, variables: Mapping[str, str], found: set[str]) -> str | None:
    """A text whose variables are replaced once; None where one has no known value."""
    parts: list[str] = []
    at = 0
    for use in _USE.finditer(text):
        name = use["braced"] or use["bare"]
        value = variables.get(name, use["otherwise"])
        own = _USE.fullmatch(value) if value else None
        if own and (own["braced"] or own["bare"]) == name:  # X=${X:-1}: the environment may say another
            value = own["otherwise"]
        if value is None:
            return None
        if name in variables:
            found.add(name)
        parts += [text[at : use.start()], value]
        at = use.end()
    return "".join([*parts, text[at:]])
