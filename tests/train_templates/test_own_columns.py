"""Conversations and preferences from columns of any name: the tokens are those of the usual names."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from test_tasks import _forget_modules, load  # noqa: F401

from trainwiz.plan.model import Data
from trainwiz.tasks import chat_columns
from trainwiz.vocabulary import COLUMN_WORDS

SFT = {"system": "be brief", "prompt": "one?", "input": "of two", "completion": "first"}
PAIR = {"prompt": "one?", "chosen": "first", "rejected": "second"}
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "in Chinese": (
        "sft",
        {"问题": "one?", "回答": "first"},
        "prompt=问题,completion=回答",
        SFT | {"system": "", "input": ""},
    ),
    "with spaces, commas and signs": (
        "sft",
        {"the question, as asked": "one?", "a=b": "first", "sys": "be brief", "of": "of two"},
        "prompt=the question, as asked,completion=a=b,system=sys,input=of",
        SFT,
    ),
    "in place of a usual name": (
        "sft",
        {"instruction": "not read", "question": "one?", "output": "not read", "best": "first"},
        "prompt=question,completion=best",
        SFT | {"system": "", "input": ""},
    ),
    "inside others": (
        "sft",
        {"data": {"question": "one?"}, "answers": {"text": ["not read", "first"]}},
        "prompt=data.question,completion=answers.text.-1",
        SFT | {"system": "", "input": ""},
    ),
    "in place of messages": (
        "sft",
        {"messages": "not read", "problem": "one?", "solution": "first"},
        "prompt=problem,completion=solution",
        SFT | {"system": "", "input": ""},
    ),
    "of a preference": (
        "sft",
        {"prompt": "one?", "chosen": "first", "rejected": "not read"},
        "prompt=prompt,completion=chosen",
        SFT | {"system": "", "input": ""},
    ),
    "messages": (
        "sft",
        {"turns": json.dumps([{"role": "user", "content": "one?"}, {"role": "assistant", "content": "first"}])},
        "messages=turns",
        SFT | {"system": "", "input": ""},
    ),
    "pairs": (
        "preference",
        {"q": "one?", "better": "first", "worse": "second"},
        "prompt=q,chosen=better,rejected=worse",
        PAIR,
    ),
    "pairs to score": (
        "reward_model",
        {"q": "one?", "+": "first", "-": "second"},
        "prompt=q,chosen=+,rejected=-",
        PAIR,
    ),
}


def tokens(folder: Path, task: str, row: dict[str, Any], **changes: Any) -> tuple[list[int], Any]:
    """The ids of a file with this row, and the task that read it."""
    folder.mkdir(parents=True)
    source = folder / "rows.jsonl"
    source.write_text(json.dumps(row) + "\n")
    made = load(folder / "code", task, data__train=str(source), data__eval=None, model__name="tiny", **changes)
    data = made.load_train_data(made.TaskConfig(cache_dir=str(folder / "cache")))
    assert made.chat.first_question(made.TaskConfig()).startswith("one?")
    return list(getattr(data.tokens, "ids", data.tokens)), made


@pytest.mark.parametrize("name", CASES)
def test_columns_of_any_name_are_read_as_the_plan_says(name: str, tmp_path: Path, capsys: Any) -> None:
    task, row, columns, usual = CASES[name]
    plain = {word: value for word, value in usual.items() if value}
    expected, _ = tokens(tmp_path / "plain", task, plain)
    capsys.readouterr()
    found, made = tokens(tmp_path / "own", task, row | {"note": "?"}, data__columns=columns)
    assert found == expected
    assert chat_columns.renamed(row, columns) == made.chat.conversations.column_names.renamed(row, columns)[0]
    told = capsys.readouterr().out
    assert "ignored column: note (1, the first:" in told
    assert all(f"ignored column: {unread} (1" in told for unread, value in row.items() if value == "not read")


def test_rows_without_a_column_are_listed_or_refused(tmp_path: Path, capsys: Any) -> None:
    columns = "prompt=q,completion=a,system=s"
    tokens(tmp_path / "optional", "sft", {"q": "one?", "a": "first"}, data__columns=columns)
    assert 'no column "s" (1, the first:' in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"rows\.jsonl:1: this conversation cannot be used: neither messages nor"):
        tokens(tmp_path / "needed", "sft", {"q": "one?"}, data__columns=columns)
    with pytest.raises(SystemExit, match=r"list of texts; name one of them in data\.columns"):
        tokens(tmp_path / "list", "sft", {"q": "one?", "a": ["first", "second"]}, data__columns=columns)


def test_a_table_read_by_other_columns_is_tokenized_anew(tmp_path: Path) -> None:
    source = tmp_path / "table.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["q", "one", "two"], ["one?", "first", "second"]])
    made = load(tmp_path / "code", "sft", data__train=str(source), data__columns="prompt=q,completion=one")
    config = made.TaskConfig(cache_dir=str(tmp_path / "cache"))
    first = bytes(i if i >= 0 else ~i for i in made.load_train_data(config).tokens.tolist() if i not in (256, ~256))
    config.columns = "prompt=q,completion=two"
    second = bytes(i if i >= 0 else ~i for i in made.load_train_data(config).tokens.tolist() if i not in (256, ~256))
    assert first.endswith(b"first")
    assert second.endswith(b"second")


def test_the_plan_the_probe_and_the_script_know_the_same_words(tmp_path: Path) -> None:
    _, made = tokens(tmp_path / "any", "sft", {"q": "one?", "a": "first"}, data__columns="prompt=q,completion=a")
    names = made.chat.conversations.column_names
    assert tuple(names.WORDS) == COLUMN_WORDS
    assert (names.WORDS, names.ASIDE) == (chat_columns.WORDS, chat_columns.ASIDE)
    text = "prompt=a, b,completion=c=d,input=e"
    assert names.named(text) == chat_columns.named(text) == {"prompt": "a, b", "completion": "c=d", "input": "e"}


def test_a_plan_takes_a_mapping_or_a_text_of_it() -> None:
    known = {"eval": None, "num_workers": 0, "packing": True}
    mapped = Data(**known, columns={"prompt": "问题", "completion": "回答"})
    typed = Data(**known, columns="prompt = 问题 , completion=回答")
    spaced = Data(**known, columns="prompt=问题，completion = 回答")
    assert mapped.columns == typed.columns == spaced.columns == "prompt=问题,completion=回答"
    for wrong in ("问题", "prompt=", "answer=回答", "prompt=a,prompt=b", {"answers": "a"}, {"prompt": 3}, {}):
        with pytest.raises(ValueError, match="columns"):
            Data(**known, columns=wrong)


def test_items_beside_the_one_that_a_path_names_are_told(tmp_path: Path) -> None:
    """A conversation in two lists is more than its first round."""
    made = load(tmp_path, "sft", data__columns="prompt=input.0,completion=output.0")
    rounds = {"input": ["q", "r"], "output": ["a", "b"]}
    found, told = made.chat.conversations.column_names.renamed(rounds, "prompt=input.0,completion=output.0")
    assert found == {"prompt": "q", "completion": "a"}
    assert told == ["column input: only input.0 is read", "column output: only output.0 is read"]
    single = {"input": ["q"], "output": ["a"]}
    assert made.chat.conversations.column_names.renamed(single, "prompt=input.0,completion=output.0")[1] == []
