"""Misspelt names, and what is said about them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from trainwiz.finding import Fix, Violation, remedy, violation


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that a misspelt one most likely means; None where none is near."""
    if word.lower() in {k.lower() for k in known}:
        return next(k for k in known if k.lower() == word.lower())
    longer = [k for k in known if k.lower().startswith(f"{word.lower()}_")]
    if len(longer) == 1 and len(word) > 2:
        return longer[0]
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.75)), None)


def respelt(path: str, word: str, known: Collection[str]) -> Fix | None:
    """The fix that puts the known word in the place of a misspelt value; None where none is near."""
    near = nearest(word, known)
    return remedy("did you mean {key}?", {path: near}, key=near) if near else None


def renamed(old: str, new: str, value: Any) -> Fix:
    """The fix that moves a value from a misspelt path to the right one."""
    return remedy("did you mean {key}?", {old: None, new: value}, key=new.rpartition(".")[2])


def not_one_of(allowed: Sequence[str], value: str, *, where: str, key: str, near: str = "") -> Violation:
    """The violation of a word that is none of those allowed; `near` is the one that it means, if that is known."""
    return violation(
        "{key} is {value}; it must be one of {choices}",
        respelt(where, near or value, allowed),
        where=where,
        key=key,
        value=value,
        choices=", ".join(allowed),
    )
