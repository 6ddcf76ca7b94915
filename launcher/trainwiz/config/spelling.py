"""Misspelt names, and the messages about them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import Any

from trainwiz.finding import Fix, Violation, remedy, safe, violation

_LONG_ENOUGH = 6
"""The least letters of a word in which one may be a typo."""


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that a misspelled one most likely means; None where none is near."""
    if word.lower() in {k.lower() for k in known}:
        return next(k for k in known if k.lower() == word.lower())
    longer = [k for k in known if k.lower().startswith(f"{word.lower()}_")]
    if len(longer) == 1 and len(word) > 2:
        return longer[0]
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.75)), None)


def is_unambiguous(word: str, known: str) -> bool:
    """Whether a word can only be this one: it differs by case, by what joins its parts, or by a typo of one letter."""
    a, b = (re.sub(r"[\W_]", "", each.lower()) for each in (word, known))
    if a == b or {word.lower(), word.lower() + "s"} & {known.lower(), known.lower() + "s"}:
        return True
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    differing = max(len(a), len(b)) - sum(block.size for block in blocks)
    return min(len(a), len(b)) >= _LONG_ENOUGH and differing <= 1 and not set(re.findall(r"\d", a + b))


def respelling_fix(path: str, word: str, known: Collection[str]) -> Fix | None:
    """The fix that replaces a misspelled value with the known word; None if no word is near."""
    near = nearest(word, known)
    return safe(remedy("did you mean {key}?", {path: near}, key=near), is_unambiguous(word, near)) if near else None


def renamed(old: str, new: str, value: Any, *, stops: bool = False) -> Fix:
    """The fix that moves a value from a misspelled path to the right one.

    It needs no question where the engine `stops` at the old name and the new one can only be what was meant.
    """
    name, right = old.rpartition(".")[2], new.rpartition(".")[2]
    return safe(
        remedy("did you mean {key}?", {old: None, new: value}, key=right), stops and is_unambiguous(name, right)
    )


def not_one_of(allowed: Sequence[str], value: str, *, where: str, key: str, near: str = "") -> Violation:
    """The violation of a word that is not allowed; `near` is the one that it means, if that is known."""
    return violation(
        "{key} is {value}; it must be one of {choices}",
        respelling_fix(where, near or value, allowed),
        where=where,
        key=key,
        value=value,
        choices=", ".join(allowed),
    )
