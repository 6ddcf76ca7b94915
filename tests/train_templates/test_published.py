"""Forms in which data sets are published: each is read as it is meant, or refused by name."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from plans import BASE
from test_tasks import load

from trainwiz import plan as plans
from trainwiz.probe.project import project

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("default")
FORMS = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text())
CASES = [(task, form) for task, forms in FORMS.items() for form in forms]
NAMED = {"model__name": "an/other", "model__from_scratch": False, "data__train": "rows.jsonl"}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SimpleNamespace]:
    """The generated readers of each task."""
    found = {}
    for task in ("sft", "preference", "causal_lm"):
        load(tmp_path_factory.mktemp(task), task, **NAMED)
        names = ("sources", "conversations", "preferences")
        found[task] = SimpleNamespace(**{name: sys.modules[name] for name in names if name in sys.modules})
    return found


def read(code: SimpleNamespace, file: Path) -> list[Any]:
    """All rows of a file, as the training reads them."""
    convert = code.preferences.preference_of if hasattr(code, "preferences") else None
    return [code.conversations.read(row, convert) for row in code.sources.Sources(str(file), "train")]


def shown(talk: Any) -> str:
    """A conversation in short."""
    said = zip(talk.messages, talk.learned, strict=True)
    return " / ".join(f"{'*' * learned}{m['role']} {text_of(m)}" for m, learned in said)


def text_of(message: dict[str, Any]) -> str:
    """What a message says, with its reasoning before and a mark for each call behind it."""
    thought = message.get("reasoning_content")
    return f"{f'<{thought}>' * bool(thought)}{message['content']}{'!' * len(message.get('tool_calls', ()))}"


def facts(task: str, source: Path, loss: str = "dpo") -> Any:
    """What `check` knows of the source."""
    values = {
        "task": task,
        "preference.loss": loss,
        "model.name": "an/other",
        "model.from_scratch": False,
        "data.train": str(source),
    }
    return project(plans.with_changes(BASE, values), str(source.parent)).train


@pytest.mark.parametrize(("task", "form"), CASES, ids=[f"{task}, {form['name']}" for task, form in CASES])
def test_a_form_is_read_as_it_is_meant_or_refused(
    task: str, form: dict[str, Any], code: dict[str, SimpleNamespace], tmp_path: Path
) -> None:
    made = code[task]
    (file := tmp_path / "rows.jsonl").write_text(f"{json.dumps(form['row'])}\n" * 2)
    known = facts(task, file, form.get("loss", "dpo"))
    if refused := form.get("refused"):
        with pytest.raises(SystemExit) as stopped:
            read(made, file)
        assert refused in str(stopped.value)
        assert f"{file}:1" in str(stopped.value)
        assert known.detail, "check says so before a training begins"
        return
    rows = read(made, file)
    assert [" | ".join(map(shown, getattr(row, "answers", [row]))) for row in rows] == [form["reads"]] * 2
    notes = made.preferences.notes_on(rows[0]) if task == "preference" else made.conversations.notes_on(rows[0], bool)
    assert any(note.startswith(form.get("notes", "")) for note in ["", *notes][bool(form.get("notes")) :])
    assert (known.detail, known.amount and known.amount.documents) == ("", 2)


def as_list(rows: list[Any]) -> bytes:
    return json.dumps(rows, ensure_ascii=False).encode()


def by_line(rows: list[Any]) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


TALK = [{"role": "user", "content": "问"}, {"role": "assistant", "content": "答"}]
ROWS = [{"instruction": f"问题{i}", "output": f"答案{i}"} for i in range(9)]
TABLE = "instruction,output\n" + "".join(f"{row['instruction']},{row['output']}\n" for row in ROWS)
READ = {
    "mark.jsonl": b"\xef\xbb\xbf" + by_line(ROWS),
    "mark.json": b"\xef\xbb\xbf" + as_list(ROWS),
    "mark.csv": b"\xef\xbb\xbf" + TABLE.encode(),
    "returns.jsonl": by_line(ROWS).replace(b"\n", b"\r\n"),
    "lines.ndjson": by_line(ROWS),
    "lines.jsonlines": by_line(ROWS),
    "lines.JSONL": by_line(ROWS),
    "lists.jsonl": by_line([TALK] * 9),
    "lists.json": as_list([TALK] * 9),
    "separators.jsonl": by_line([{"instruction": "a\u2028b", "output": "c\x85d"}] * 9),
}
REFUSED = {
    "gbk.csv": (TABLE.encode("gbk"), "is not UTF-8, but GB18030"),
    "gbk.jsonl": (by_line(ROWS).decode().encode("gbk"), "is not UTF-8, but GB18030"),
    "gbk.json": (as_list(ROWS).decode().encode("gbk"), "is not UTF-8, but GB18030"),
    "wide.jsonl": (by_line(ROWS).decode().encode("utf-16"), "is not UTF-8, but UTF-16"),
    "wide.json": (as_list(ROWS).decode().encode("utf-16"), "is not UTF-8, but UTF-16"),
    "object.json": (json.dumps({"version": 1, "data": ROWS}, indent=1).encode(), "is one JSON object"),
    "columns.json": (json.dumps({"instruction": ["q"], "output": ["a"]}).encode(), "all values of each column"),
    "several_lines.jsonl": ("\n".join(json.dumps(row, indent=1) for row in ROWS).encode(), "is not a JSON object"),
    "commas.jsonl": (by_line(ROWS).replace(b"\n", b",\n"), "is not a JSON object"),
    "quotes.jsonl": ("\n".join(map(str, ROWS)).encode(), "is not a JSON object"),
    "cut_off.jsonl": (by_line(ROWS)[:-2], "is not a JSON object"),
    "half.json": (json.dumps([{"instruction": "\ud83d", "output": "a"}]).encode(), "a character is cut in half"),
    "twice.jsonl": (b'{"instruction": "a", "output": "b", "output": "c"}\n', 'the key "output" is given twice'),
    "twice.json": (
        b'[{"instruction": "a", "instruction": "b", "output": "c"}]',
        'the key "instruction" is given twice',
    ),
    "pointer.jsonl": (b"version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 1\n", "a pointer of Git LFS"),
    "page.ndjson": (b"<!DOCTYPE html><html></html>", "its content is HTML"),
}


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_whole(name: str, code: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    (file := tmp_path / name).write_bytes(READ[name])
    rows = read(code["sft"], file)
    assert [len(row.messages) for row in rows] == [2] * 9
    known = facts("sft", file)
    assert (known.detail, known.amount and (known.amount.documents, known.amount.exact)) == ("", (9, True))


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_refused_by_check_and_by_the_training(
    name: str, code: dict[str, SimpleNamespace], tmp_path: Path
) -> None:
    content, says = REFUSED[name]
    (file := tmp_path / name).write_bytes(content)
    assert says in facts("sft", file).detail
    with pytest.raises(SystemExit, match=name):
        read(code["sft"], file)


CELLS = {
    "messages": '[{"role": "user", "content": "q", "content": "r"}, {"role": "assistant", "content": "a"}]',
    "conversations": '[{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "value": "b"}]',
}


@pytest.mark.parametrize("column", CELLS)
def test_a_key_given_twice_in_the_json_of_a_cell_is_refused(
    column: str, code: dict[str, SimpleNamespace], tmp_path: Path
) -> None:
    """As in a row of JSON: the last value was read, and the others were lost without a word."""
    with (file := tmp_path / "cells.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([[column], [CELLS[column]]])
    with pytest.raises(SystemExit, match=r'cells\.csv:2: .*the key "(content|value)" is given twice'):
        read(code["sft"], file)


def test_a_key_given_twice_in_an_answer_as_json_is_refused(code: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    chosen = '[{"role": "assistant", "content": "a", "content": "b"}]'
    with (file := tmp_path / "pairs.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["prompt", "chosen", "rejected"], ["q", chosen, "c"]])
    with pytest.raises(SystemExit, match='the key "content" is given twice'):
        read(code["preference"], file)


def test_lists_that_are_no_conversations_are_not_read_as_some(code: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    (file := tmp_path / "lists.jsonl").write_bytes(by_line([ROWS[:2], ROWS[2:]]))
    assert "is not valid JSON" in facts("sft", file).detail
    with pytest.raises(SystemExit, match=r"lists\.jsonl:1: .*not a JSON object"):
        read(code["sft"], file)


def test_documents_in_lines_are_not_one_text(code: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    """A .ndjson file was read as a text with its keys and quotes."""
    made = code["causal_lm"]
    (file := tmp_path / "lines.ndjson").write_bytes(by_line([{"text": f"text {i}"} for i in range(9)]))
    rows = list(made.sources.Sources(str(file), "train", texts=True))
    assert [made.sources.text_of(row, "text") for row in rows] == [f"text {i}" for i in range(9)]


def test_a_file_of_blank_lines_has_no_data(tmp_path: Path) -> None:
    (file := tmp_path / "blank.jsonl").write_text("\n \n\n")
    assert facts("sft", file).samples == 0


def test_structs_of_parquet_are_messages(code: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    tables = {
        "list.parquet": {"conversations": [[{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]] * 9},
        "sequence.parquet": {"conversations": [{"from": ["human", "gpt"], "value": ["q", "a"]}] * 9},
        "text.parquet": {"messages": [json.dumps(TALK)] * 9},
    }
    for name, columns in tables.items():
        parquet.write_table(pyarrow.table(columns), file := tmp_path / name)
        rows = read(code["sft"], file)
        assert [shown(row)[:6] for row in rows] == ["user q" if name != "text.parquet" else "user 问"] * 9
        assert facts("sft", file).detail == ""


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "q"}], "ground_truth": "a"},
        {"instruction": "q", "output": ""},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]},
    ],
    ids=["for reinforcement learning", "a test set", "all of weight 0"],
)
def test_conversations_that_teach_nothing_are_named_before_the_training(row: dict[str, Any], tmp_path: Path) -> None:
    (file := tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    assert facts("sft", file).detail == "rows.jsonl: none of the first 3 conversations has an answer to learn"
    answered = {"instruction": "q", "output": "a"}
    file.write_text(f"{json.dumps(row)}\n{json.dumps(answered)}\n")
    assert not facts("sft", file).detail
