"""Plans that cannot be read as plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainwiz.finding import Level, Violation
from trainwiz.rules.registry import rule


@rule("TW690", level=Level.ERROR, field="plan")
def a_plan_has_known_keys_and_legal_values(mistakes: Sequence[Violation]) -> Iterator[Violation]:
    """A plan contains only keys that trainwiz knows, each of them once and with a valid value.

    Without it: no command of trainwiz accepts the plan, and its other rules cannot check it.
    Why: if a misspelled key were ignored, the training would use a default that nobody chose.
    Instead: use the nearest key or a valid value, which the message names; `trainwiz explain keys` lists them all.
    Source: `Plan` in trainwiz/plan/model.py
    """
    yield from mistakes
