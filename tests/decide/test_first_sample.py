"""The first row of the data, as the review shows it."""

from typing import Any

import pytest

from trainwiz.decide import decide
from trainwiz.decide.first_sample import turns
from trainwiz.project import DataFacts
from trainwiz.wizard import summary

OPENAI = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n there"}]
LONG = "a" * 30


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"messages": [*OPENAI, {"role": "assistant", "content": "Hello"}]},
            [("system", "Be brief.", False), ("user", "Hi there", False), ("assistant", "Hello", True)],
        ),
        (
            {"conversations": [{"from": "human", "value": LONG}, {"from": "gpt", "value": "b"}]},
            [("human", "a" * 23 + "…", False), ("gpt", "b", True)],
        ),
        ({"messages": [{"role": "assistant", "content": "no", "weight": 0}]}, [("assistant", "no", False)]),
        ({"instruction": "Add", "input": "1 2", "output": "3"}, [("user", "Add 1 2", False), ("assistant", "3", True)]),
        (
            {"query": "And 3?", "response": "6", "history": [["1 + 2?", "3"]], "system": ""},
            [("user", "1 + 2?", False), ("assistant", "3", True), ("user", "And 3?", False), ("assistant", "6", True)],
        ),
        (
            {"instruction": "Add", "input": "", "output": "3", "system": "Be brief.", "history": None},
            [("system", "Be brief.", False), ("user", "Add", False), ("assistant", "3", True)],
        ),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "b"}], "system": "Be brief."},
            [("system", "Be brief.", False), ("human", "Hi", False), ("gpt", "b", True)],
        ),
        ({"messages": OPENAI * 5}, [("system", "Be brief.", False), ("user", "Hi there", False)] * 2),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, []),
        ({"messages": ["text"]}, []),
        ({"messages": "text"}, []),
        ({"text": "no conversation"}, []),
        ({}, []),
    ],
)
def test_who_says_what(row: dict[str, Any], expected: list[tuple[str, str, bool]]) -> None:
    assert [(turn.role, turn.text, turn.learned) for turn in turns(row)] == expected


def test_the_review_shows_roles_what_is_learned_and_how_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    row = {"messages": [*OPENAI, {"role": "assistant", "content": "Hello"}]}
    data = DataFacts(name="talks.jsonl", kind="file", first=row)
    shown = summary.lines(decide({"task": "sft", "data.train": "talks.jsonl"}, None, data=data))["data.train"]
    assert "the first: system → user → assistant* (* is learned), Hello" in shown
    other = summary.lines(decide({"task": "sft", "data.train": "talks.jsonl"}, None))["data.train"]
    assert "learned" not in other


@pytest.mark.parametrize(
    ("task", "row", "shown"),
    [
        ("text_classification", {"text": "a fine film", "label": 1}, "text: a fine film → label: 1"),
        ("text_regression", {"id": 7, "review": "so\x1b[2J so", "score": 2.5}, "review: so [2J so → score: 2.5"),
        ("text_classification", {"text": "a" * 90, "label": "good"}, f"text: {'a' * 35}… → label: good"),
        ("causal_lm", {"title": "x", "text": "Once upon\n a time"}, "text: Once upon a time"),
        ("causal_lm", {"prompt": "Ask me", "answer": "b"}, "prompt: Ask me"),
        ("image_classification", {"image": "a.png", "label": 1}, None),
        ("text_classification", {}, None),
    ],
)
def test_the_review_shows_the_first_text_with_its_label(task: str, row: dict[str, Any], shown: str | None) -> None:
    data = DataFacts(name="texts.csv", kind="file", first=row, samples=40)
    told = summary.lines(decide({"task": task, "data.train": "texts.csv"}, None, data=data)).get("data.text_column")
    assert (told and told.removeprefix("First text").strip()) == shown


def test_each_column_of_the_first_row_has_its_role() -> None:
    row = {"id": 7, "review": "so so", "stars": 3}
    data = DataFacts(name="texts.csv", kind="file", first=row, samples=40)
    told = decide({"task": "text_classification", "data.train": "texts.csv"}, None, data=data).outlook
    assert [(str(part.role), part.column, part.text) for part in told.parts] == [
        ("text", "review", "so so"),
        ("label", "stars", "3"),
    ]
    unread = decide({"task": "text_classification", "data.train": "texts.csv"}, None).outlook
    assert unread.parts == ()


@pytest.mark.parametrize(
    ("row", "columns", "roles"),
    [
        ({"messages": [*OPENAI, {"role": "assistant", "content": "Hello"}]}, None, ["system", "user", "assistant*"]),
        ({"instruction": "Add", "input": "1 2", "output": "3"}, None, ["user", "assistant*"]),
        ({"topic": "Add", "reply": "3"}, "prompt=topic,completion=reply", ["prompt", "completion"]),
        ({"topic": "Add", "reply": "3"}, None, []),
    ],
)
def test_what_a_row_of_a_conversation_is_read_as(row: dict[str, Any], columns: str | None, roles: list[str]) -> None:
    data = DataFacts(name="talks.jsonl", kind="file", first=row, samples=40)
    answers = {"task": "sft", "data.train": "talks.jsonl", **({"data.columns": columns} if columns else {})}
    assert [str(part.role) for part in decide(answers, None, data=data).outlook.parts] == roles


def test_what_a_pair_is_read_as() -> None:
    row = {"prompt": "Add", "chosen": "3", "rejected": "4"}
    data = DataFacts(name="pairs.jsonl", kind="file", first=row, samples=40)
    told = decide({"task": "preference", "data.train": "pairs.jsonl"}, None, data=data).outlook
    assert {(str(part.role), part.column, part.text) for part in told.parts} == {(k, k, v) for k, v in row.items()}
