"""Widths of text on a terminal, and how to cut, pad and break text by them.

A Chinese character takes two columns, and a line may break beside it without a space.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

_NEVER_FIRST = frozenset("，。、；：！？）】》」』”’…,.;:!?)]}")
_NEVER_LAST = frozenset("（【《「『“‘([{")


# docs/decisions/cli.md: Columns are counted with Python's own Unicode table
def width(text: str) -> int:
    """The columns that a text takes. It must not have control characters."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def one_line(text: str) -> str:
    """Text of others on one line, without characters that would move the cursor."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def cut(text: str, columns: int) -> str:
    """As much of the beginning as fits into so many columns."""
    used = 0
    for i, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return text[:i]
    return text


def shortened(text: str, columns: int) -> str:
    """The text, or as much of it as fits before an ellipsis."""
    return text if width(text) <= columns else cut(text, columns - 1).rstrip() + "…"


def pad(text: str, columns: int) -> str:
    """The text, filled with spaces to so many columns; a longer one is unchanged."""
    return text + " " * (columns - width(text))


def wrap(text: str, columns: int, *, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most so many columns, the first one behind `first`, others behind `rest`.

    They break at spaces and beside Chinese characters, but not before a closing or after an opening mark. What has
    no such place (a path, an address) stays in one piece, so that it can be copied, and may be longer.
    """
    lines = []
    for paragraph in text.split("\n"):
        line, empty = first, True
        for spaces, word in _words(paragraph):
            longer = f"{line}{word}" if empty else f"{line}{' ' * spaces}{word}"
            if empty or width(longer) <= columns:
                line, empty = longer, False
            else:
                lines.append(line)
                line = rest + word
        lines.append(line)
        first = rest
    return lines


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Pieces that are not broken, each with the number of spaces before it."""
    spaces, word = 0, ""
    for character in text:
        if character == " ":
            if word:
                yield spaces, word
                spaces, word = 0, ""
            spaces += 1
        elif word and _may_break(word[-1], character):
            yield spaces, word
            spaces, word = 0, character
        else:
            word += character
    if word:
        yield spaces, word


def _may_break(before: str, after: str) -> bool:
    wide = _columns(before) == 2 or _columns(after) == 2
    return wide and after not in _NEVER_FIRST and before not in _NEVER_LAST


def _columns(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
