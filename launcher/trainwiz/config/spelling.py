"""Misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that a misspelt one most likely means; None where none is near."""
    if word.lower() in {k.lower() for k in known}:
        return next(k for k in known if k.lower() == word.lower())
    longer = [k for k in known if k.lower().startswith(f"{word.lower()}_")]
    if len(longer) == 1 and len(word) > 2:
        return longer[0]
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.75)), None)
