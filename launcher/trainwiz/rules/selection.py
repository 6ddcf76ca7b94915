"""Rule ids as people type them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from trainwiz import rules
from trainwiz.errors import UsageError
from trainwiz.message import say

_PREFIX = re.compile(r"TW\d{0,3}")


def prefixes(typed: Sequence[str]) -> tuple[str, ...]:
    """What `--ignore` was given, in capitals. Raises `UsageError` for what no rule's id begins with."""
    ids = [rule.id for rule in rules.load()] if typed else []
    wanted = tuple(word.strip().upper() for word in typed)
    for word in wanted:
        if not _PREFIX.fullmatch(word) or not any(id.startswith(word) for id in ids):
            raise unknown(word, ids)
    return wanted


def unknown(word: str, ids: Sequence[str]) -> UsageError:
    """The error for an id that no rule has, with the nearest that one has."""
    remedy = say("list all rules: trainwiz explain")
    near = _nearest(word.upper(), ids)
    if near:
        return UsageError(say("unknown rule {word}; did you mean {near}?", word=word, near=near), remedy)
    return UsageError(say("unknown rule {word}", word=word), remedy)


def _nearest(word: str, ids: Sequence[str]) -> str | None:
    digits = re.fullmatch(r"(?:TW)?(\d{1,9})", word)
    if digits and ids:
        return min(ids, key=lambda id: abs(int(id[2:]) - int(digits[1])))
    return next(iter(difflib.get_close_matches(word, ids, n=1, cutoff=0.5)), None)
