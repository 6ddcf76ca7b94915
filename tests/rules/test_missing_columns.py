"""Where the first row lacks the plan's column, the finding points to the column, so that the wizard asks for that."""

from typing import Any

import plans
import pytest

from trainwiz import rules
from trainwiz.project import DataFacts, Project
from trainwiz.rules import Facts


@pytest.mark.parametrize(
    ("task", "first", "where"),
    [
        ("text_classification", {"text": "good", "stars": 5}, "data.label_column"),
        ("text_classification", {"body": "good", "stars": 5}, "data.text_column"),
        ("text_classification", {"text": "good", "label": None}, "data.train"),
        ("text_classification", {}, "data.train"),
        ("causal_lm", {"body": "good"}, "data.text_column"),
        ("sft", {"frage": "why?"}, "data.train"),
        ("text_multilabel", {"text": "good", "cat": 1}, "data.train"),
    ],
)
def test_the_column_is_what_to_change(task: str, first: dict[str, Any], where: str) -> None:
    train = DataFacts(name="a.csv", kind="file", detail="line 2 is wrong", first=first)
    facts = Facts(
        plan=plans.make(task=task, data__train="a.csv"),
        machine=None,
        project=Project(folder=".", train=train),
        estimate=None,
    )
    found = rules.check(facts, rules=[rule for rule in rules.of_plans() if rule.id == "TW512"])
    assert [finding.where for finding in found] == [where]


@pytest.mark.parametrize(
    ("task", "first", "columns"),
    [
        ("sft", {"问题": "why?", "回答": "so"}, "prompt=问题,completion=回答"),
        ("sft", {"question": "why?", "answers": {"text": ["so"]}}, "prompt=question,completion=answers.text.0"),
        ("preference", {"prompt": "why?", "better": "so", "worse": "no"}, "prompt=prompt,chosen=better,rejected=worse"),
    ],
)
def test_the_remedy_names_the_columns_that_may_be_meant(task: str, first: dict[str, Any], columns: str) -> None:
    train = DataFacts(name="a.csv", kind="file", detail="the first row is of another form", first=first)
    facts = Facts(
        plan=plans.make(task=task, data__train="a.csv"),
        machine=None,
        project=Project(folder=".", train=train),
        estimate=None,
    )
    (found,) = rules.check(facts, rules=[rule for rule in rules.of_plans() if rule.id == "TW512"])
    assert found.where == "data.columns"
    assert found.fix is not None
    assert found.fix.changes == {"data.columns": columns}


def test_rated_answers_are_to_become_pairs() -> None:
    """No column of raw UltraFeedback is a pair, so data.columns would be no remedy."""
    first = {"instruction": "a", "completions": [{"response": "b", "overall_score": 5.0}]}
    train = DataFacts(name="a.jsonl", kind="file", detail="no pair", first=first)
    plan = plans.make(task="preference", data__train="a.jsonl")
    facts = Facts(plan=plan, machine=None, project=Project(folder=".", train=train), estimate=None)
    (found,) = rules.check(facts, rules=[rule for rule in rules.of_plans() if rule.id == "TW512"])
    assert found.fix is not None
    assert "ultrafeedback_binarized::train_prefs" in str(found.fix.message)
    assert found.where == "data.train"
