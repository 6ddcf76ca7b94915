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
