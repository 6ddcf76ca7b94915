"""Which values must be answered again for a plan to have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from trainwiz.decide import Decided
from trainwiz.decide.earlier_answers import values_to_keep
from trainwiz.errors import PlanError


class Values(dict[str, Any]):
    """A plan, as far as it is asked for its values."""


def decide(answers: Mapping[str, Any]) -> Decided:
    """A value `b` that follows `a` unless it is answered; `c` moves `a` away, and `d` is refused."""
    if "d" in answers:
        raise PlanError([])
    values = {"a": 1, "b": 1, "c": 1, "d": 1, **answers}
    if "a" in answers and "b" not in answers:
        values["b"] = answers["a"]
    if "c" in answers:
        values["a"] = 7
    return Decided(plan=Values(values), sources={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({"a": 1, "b": 1}, {}),
        ({"b": 2}, {"b": 2}),
        ({"a": 2, "b": 2}, {"a": 2}),  # the one brings the other
        ({"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ({"a": 1, "c": 2}, {}),  # c would move a
        ({"b": 2, "d": 2}, {"b": 2}),  # d is refused
    ],
)
def test_values_to_keep(wanted: dict[str, Any], kept: dict[str, Any]) -> None:
    assert values_to_keep({}, wanted, decide) == kept
