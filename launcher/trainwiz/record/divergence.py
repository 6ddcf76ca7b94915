"""Whether two runs trained alike: their curves, update by update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwiz.record.metrics import Record

_CURVES = ("loss", "grad_norm_pre_clip")
_OF_EVALUATIONS = "eval_"


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How far two runs are apart."""

    updates: int
    """Updates that both runs recorded."""
    values: int
    """Values that both recorded: losses, norms of gradients, and what evaluations measured."""
    equal: int
    """How many of them are equal to the last bit."""
    largest: float
    """The largest relative difference."""
    curve: str
    """The curve with that difference."""
    tolerance: float
    """The relative difference up to which the runs count as alike."""
    parted_at: int | None
    """The first update at which they differ by more; None: at none."""
    parted_in: str = ""
    """The curve in which they do."""
    before: float | None = None
    """Its value there in the earlier run."""
    after: float | None = None
    """And in the later one."""

    @property
    def verdict(self) -> str:
        """`equal` (to the last bit), `alike` (within the tolerance), `diverged`, or `nothing` to compare."""
        if not self.values:
            return "nothing"
        if self.parted_at is not None:
            return "diverged"
        return "equal" if self.equal == self.values else "alike"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a difference without bound is null."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        finite = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in named.items()}
        return {"verdict": self.verdict, **finite}


def divergence(before: Sequence[Record], after: Sequence[Record], tolerance: float) -> Divergence:
    """Compare the curves of two runs over the updates that both recorded."""
    old, new = _by_update(before), _by_update(after)
    shared = sorted(old.keys() & new.keys())
    equal, values, largest, curve = 0, 0, 0.0, ""
    parted: tuple[int, str] | None = None
    for update in shared:
        for name in sorted(old[update].keys() & new[update].keys()):
            apart = relative(old[update][name], new[update][name])
            values, equal = values + 1, equal + (apart == 0)
            if apart > largest:
                largest, curve = apart, name
            if apart > tolerance and parted is None:
                parted = (update, name)
    at = {"before": old[parted[0]][parted[1]], "after": new[parted[0]][parted[1]]} if parted else {}
    return Divergence(
        updates=len(shared),
        values=values,
        equal=equal,
        largest=largest,
        curve=curve,
        tolerance=tolerance,
        parted_at=parted[0] if parted else None,
        parted_in=parted[1] if parted else "",
        **at,
    )


def relative(one: float, other: float) -> float:
    """The relative difference of two numbers; 0 for what is not finite in the same way, infinite otherwise."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _by_update(records: Sequence[Record]) -> dict[int, dict[str, float]]:
    """The values of each update; where it was trained twice, after a restart, the later ones."""
    found: dict[int, dict[str, float]] = {}
    for record in records:
        update = record.get("update")
        if isinstance(update, int) and not isinstance(update, bool):
            found.setdefault(update, {}).update(_values(record))
    return found


def _values(record: Mapping[str, Any]) -> dict[str, float]:
    compared = ((n, v) for n, v in record.items() if n in _CURVES or n.startswith(_OF_EVALUATIONS))
    numbers = ((n, v) for n, v in compared if isinstance(v, (int, float)) and not isinstance(v, bool))
    return {n: _float(v) for n, v in numbers}


def _float(number: float) -> float:
    """The number; an integer that no float holds is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
