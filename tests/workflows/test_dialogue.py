"""What sends a person back into the review."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainwiz.finding import Finding, Level
from trainwiz.message import Message
from trainwiz.workflows.create import dialogue


@pytest.mark.parametrize(("level", "reviews"), [(Level.HINT, 1), (Level.WARNING, 2)])
def test_advice_that_comes_up_after_the_review(monkeypatch: pytest.MonkeyPatch, level: Level, reviews: int) -> None:
    """Another program took the port meanwhile: that is told, and no ninth Enter."""
    new = Finding(rule="TW617", level=level, where="machine.main_process_port", message=Message("taken"))
    found: list[tuple[Finding, ...]] = [(), (new,)]
    told: list[Sequence[Finding]] = []
    reviewed: list[object] = []
    monkeypatch.setattr(dialogue.findings, "show", told.append)
    monkeypatch.setattr(dialogue, "review", reviewed.append)
    interview = SimpleNamespace(decided=lambda: SimpleNamespace(plan=None), answers={"seed": 1}, fixed={})
    planner = SimpleNamespace(findings=lambda *_, **__: found.pop(0) if len(found) > 1 else found[0])
    answers, _ = dialogue._settled(cast(Any, interview), cast(Any, planner), reviewed=False)
    assert (answers, len(reviewed), told) == ({"seed": 1}, reviews, [(new,)])
