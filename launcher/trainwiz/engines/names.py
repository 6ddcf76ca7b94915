"""Long lists of names, written as lines of words."""

from __future__ import annotations


def names(words: str, *, below: str = "") -> frozenset[str]:
    """The words of a text as a set; `below` is what all of them begin with."""
    return frozenset(below + word for word in words.split())


def in_order(words: str) -> tuple[str, ...]:
    """The words of a text in its order, in which they are shown."""
    return tuple(words.split())
