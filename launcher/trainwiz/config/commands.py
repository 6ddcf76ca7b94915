"""The commands in a shell text that start trainings, with their arguments and where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainwiz.config.document import Span

_WORD = re.compile(r"""(?:[^\s"'\\;|&]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+""", re.DOTALL)
_SEPARATOR = re.compile(r"\n|;|\|\|?|&&?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Word:
    """A word of a command."""

    text: str
    """Without its quotes."""
    span: Span
    """Where it is in the text."""


@dataclass(frozen=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]
    """Its words; assignments before the program are left out."""
    assignments: Mapping[str, str]
    """Those assignments."""

    @property
    def program(self) -> str:
        """The first word, without its folder."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""

    def arguments(self, first: int = 1) -> dict[str, tuple[str, Span]]:
        """Its options by name, with - as _, and where each stands; an option without a value is true.

        What follows the first word that is neither an option nor the value of one is not read where `first` says so.
        """
        found: dict[str, tuple[str, Span]] = {}
        rest = list(self.words[first:])
        while rest:
            word = rest.pop(0)
            if not word.text.startswith("-") or word.text in ("-", "--"):
                continue
            name, equals, value = word.text.lstrip("-").partition("=")
            values = []
            if not equals:
                while rest and not re.match(r"--?[A-Za-z]", rest[0].text):
                    values.append(rest.pop(0).text)
            found[name.replace("-", "_")] = (value if equals else " ".join(values) or "true", word.span)
        return found


def commands(text: str) -> Iterator[Command]:
    """The commands of a text, line by line; comments are left out, and a backslash joins lines."""
    bare = re.sub(r"(?m)(^|(?<=\s))#[^\n]*", lambda found: " " * len(found[0]), text)
    bare = re.sub(r"\\\n", "  ", bare)
    words: list[Word] = []
    at = 0
    while at < len(bare):
        if separator := _SEPARATOR.match(bare, at):
            yield from _command(words)
            words, at = [], separator.end()
        elif word := _WORD.match(bare, at):
            words.append(_word(word))
            at = word.end()
        else:
            at += 1
    yield from _command(words)


def words(text: str) -> list[Word]:
    """The words of a text, whatever separates them; comments are left out."""
    bare = re.sub(r"(?m)(^|(?<=\s))#[^\n]*", lambda found: " " * len(found[0]), text)
    return [_word(found) for found in _WORD.finditer(bare)]


def _word(found: re.Match[str]) -> Word:
    return Word(found[0].replace('"', "").replace("'", ""), Span(found.start(), found.end()))


def _command(words: list[Word]) -> Iterator[Command]:
    rest, assignments = list(words), {}
    while rest and (
        _ASSIGNMENT.match(rest[0].text) or rest[0].text in ("export", "exec", "time", "nohup", "then", "do")
    ):
        name, equals, value = rest.pop(0).text.partition("=")
        if equals:
            assignments[name] = value
    if rest or assignments:
        yield Command(tuple(rest), assignments)
