"""Earlier answers beside later ones: they stay while they are legal, and are dropped when they are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz.errors import PlanError
from trainwiz.message import Message

if TYPE_CHECKING:
    from trainwiz.decide import Decided

FAMILIES: tuple[frozenset[str], ...] = (
    frozenset({"schedule.train_strategy", "schedule.n_epochs", "schedule.n_steps"}),
    frozenset({"engine", "strategy.kind", "strategy.zero_stage"}),
)
"""Keys that belong together: answering one of them drops earlier answers to the others."""


@dataclass(frozen=True, kw_only=True)
class DroppedAnswer:
    """An earlier answer that no longer fits, and why."""

    key: str
    """The key of the plan."""
    value: Any
    """What was answered."""
    problems: Sequence[Message]
    """What is wrong with it now."""


def carry(
    firm: Mapping[str, Any], earlier: Mapping[str, Any], decide: Callable[[Mapping[str, Any]], object]
) -> tuple[dict[str, Any], tuple[DroppedAnswer, ...]]:
    """The earlier answers that agree with the firm ones, and those that do not. `decide` raises `PlanError`."""
    kept: dict[str, Any] = {}
    dropped = []
    for key, value in without_replaced(firm, earlier).items():
        try:
            decide({**firm, **kept, key: value})
        except PlanError as error:
            dropped.append(DroppedAnswer(key=key, value=value, problems=error.problems))
        else:
            kept[key] = value
    return kept, tuple(dropped)


# docs/decisions/wizard.md: `init` in an existing project starts from its answers
def values_to_keep(
    answers: Mapping[str, Any], values: Mapping[str, Any], decide: Callable[[Mapping[str, Any]], Decided]
) -> dict[str, Any]:
    """Those values that must be answered as well for a plan to have them, as far as none of them moves another one.

    One that does is kept together with what it moves: ranks with the real batch that they would change.
    """
    kept: dict[str, Any] = {}
    differing = _differing(decide(answers), values)
    for key in sorted(differing):
        wanted = {key: values[key]}
        try:
            left = _differing(decide({**answers, **kept, **wanted}), values)
            if moved := left - differing:
                wanted |= {name: values[name] for name in moved}
                left = _differing(decide({**answers, **kept, **wanted}), values)
        except PlanError:
            continue
        if left < differing:
            kept |= wanted
            differing = left
    return kept


def _differing(decided: Decided, values: Mapping[str, Any]) -> set[str]:
    return {key for key, value in values.items() if decided.plan.get(key) != value}


def without_replaced(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """The lower answers without those that the upper ones replace, families included."""
    taken = set(upper) | {key for family in FAMILIES if family & upper.keys() for key in family}
    if {"model.name"} <= upper.keys() & lower.keys():
        taken.add("model.parameters")  # of the earlier model
    return {key: value for key, value in lower.items() if key not in taken}


def stacked(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Layers of answers in one, the first of them the strongest."""
    result: dict[str, Any] = {}
    for layer in layers:
        result |= without_replaced(result, layer)
    return result
