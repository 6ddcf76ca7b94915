"""How long the rows of a person's data are, against the length of a sample."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.decide.amount import is_own
from trainwiz.decide.decision import Decision

_FEW = 3
"""Rows that have no percentiles."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of the rows that were read."""

    rows: int
    """How many were read."""
    median: int
    """Tokens of the row in the middle."""
    most: int
    """95 % of the rows are at most so long."""
    longest: int
    """Tokens of the longest row."""
    longer: int
    """How many are longer than a sample may be."""


def of_rows(d: Decision, sequence_length: int) -> Lengths | None:
    """The lengths of the first rows of own texts; None where they are unknown, too few, or not texts."""
    amount = d.data.amount if d.data else None
    if amount is None or not is_own(d) or not d.task.from_hub or len(amount.lengths) < _FEW:
        return None
    if d.task.compares or d.task.pairs:  # a row holds two texts
        return None
    each = sorted(amount.lengths)
    return Lengths(
        rows=len(each),
        median=each[(len(each) - 1) // 2],
        most=each[-(-95 * len(each) // 100) - 1],
        longest=each[-1],
        longer=sum(length > sequence_length for length in each),
    )
