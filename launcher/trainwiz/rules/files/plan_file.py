"""Plans that cannot be read as plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainwiz.finding import Level, Violation
from trainwiz.rules.registry import rule


@rule("TW690", level=Level.ERROR, field="plan")
def a_plan_has_known_keys_and_legal_values(mistakes: Sequence[Violation]) -> Iterator[Violation]:
    """A plan has only keys that trainwiz knows, each once, with a legal value.

    Without it: no command of trainwiz takes the plan; all of its other rules wait until it can be read.
    Why: a misspelt key that was ignored would train with a default that nobody chose.
    Instead: the nearest key or a legal value, which the message names; `trainwiz explain keys` lists them all.
    Source: `Plan` in trainwiz/plan/model.py
    """
    yield from mistakes
