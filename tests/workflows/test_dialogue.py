"""What is judged before a project is written, and what sends a person back into the review."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainwiz import quantities
from trainwiz.estimate.forecast import forecast
from trainwiz.finding import Finding, Level
from trainwiz.message import Message
from trainwiz.store import machines
from trainwiz.workflows import facts
from trainwiz.workflows.create import dialogue
from trainwiz.workflows.create.planner import Planner


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
    planner = SimpleNamespace(wait=lambda: None, findings=lambda *_, **__: found.pop(0) if len(found) > 1 else found[0])
    answers, _ = dialogue._settled(cast(Any, interview), cast(Any, planner), reviewed=False)
    assert (answers, len(reviewed), told) == ({"seed": 1}, reviews, [(new,)])


def test_what_the_interpreter_has_installed_decides_before_anything_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first `init` looks at the interpreter in the background, and must not keep what it decided without it."""
    there = machines.read(Path(__file__).parents[1] / "machines" / "cpu.json")
    assert there.interpreter
    old = replace(there.interpreter, packages={**there.interpreter.packages, "transformers": "4.51.3"})
    monkeypatch.setattr(facts, "machine", lambda *, wait, **_: replace(there, interpreter=old if wait else None))
    planner, answers = Planner(folder=tmp_path), {"model.name": "gpt2-124m"}
    assert planner.decide(answers).plan.data.packing
    planner.wait()
    decided = planner.decide(answers).plan
    assert not decided.data.packing
    assert "TW553" not in {finding.rule for finding in planner.findings(decided, complete=True)}


def test_the_gauge_of_a_cpu_rank_is_its_whole_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the choices beside it and the forecast of the run: Python and torch are most of a small one."""
    there = machines.read(Path(__file__).parents[1] / "machines" / "cpu.json")
    monkeypatch.setattr(facts, "machine", lambda **_: there)
    planner = Planner(folder=tmp_path)
    plan = planner.decide({"model.name": "gpt2-124m"}).plan
    model = planner.model(plan)
    assert model
    expected = forecast(plan, model.parameters or 0, model.transformer, gpu=None).host_bytes
    assert expected
    gauge = dialogue._gauge(planner, plan)
    assert gauge.partition(" ")[2].startswith(quantities.size(expected))
    assert gauge[0] == "█"


def test_data_in_guessed_columns_is_counted_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("Question,Best Answer\n" + "".join(f"why {i}?,because {i}\n" for i in range(300)))
    decided = Planner(folder=tmp_path).decide({"task": "sft", "model.name": "tiny", "data.train": "own.csv"})
    assert decided.plan.data.columns == "prompt=Question,completion=Best Answer"
    assert decided.plan.data.eval == "10%"
    assert decided.outlook.samples
