"""Long lists of names, written as lines of words."""

from __future__ import annotations


def names(words: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(words.split())
