"""Texts with any number of labels: every form of them, what is refused, and what the saved model says."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plans import BASE
from test_adapters import published
from test_tasks import _forget_modules, load  # noqa: F401

from trainwiz import plan as plans
from trainwiz.probe.project import project

pytestmark = pytest.mark.filterwarnings("default")


def table(file: Path, labels: list[Any]) -> str:
    """Texts with one column of labels, or with several where each label is a dict."""
    columns = [label if isinstance(label, dict) else {"label": label} for label in labels]
    found = [{"text": f"text {i}", **each} for i, each in enumerate(columns)]
    if file.suffix == ".csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    else:
        file.write_text("\n".join(map(json.dumps, found)))
    return str(file)


def said(where: str, column: str) -> str:
    """What is said of the data before the training."""
    values = {"task": "text_multilabel", "data.train": where, "data.label_column": column}
    found = project(plans.with_changes(BASE, values), str(Path(where).parent)).train
    assert found
    return found.detail


@pytest.mark.parametrize(
    ("file", "labels", "column", "learned", "names"),
    [
        ("a.jsonl", [["b", "a"], [], ["a"]], "label", [[1, 1], [0, 0], [1, 0]], ["a", "b"]),
        ("a.jsonl", ["x, y", "y", ""], "label", [[1, 1], [0, 1], [0, 0]], ["x", "y"]),
        ("a.jsonl", ["x; y, z", "x", "x"], "label", [[1, 1], [1, 0], [1, 0]], ["x", "y, z"]),
        ("a.jsonl", [[10], [9, 10], []], "label", [[0, 1], [1, 1], [0, 0]], ["9", "10"]),
        ("a.jsonl", [[1, 0, 0], [1, 1, 0], [0, 0, 0]], "label", [[1, 0, 0], [1, 1, 0], [0, 0, 0]], ["0", "1", "2"]),
        ("a.jsonl", [[True, True], [False, True], [True, False]], "label", [[1, 1], [0, 1], [1, 0]], ["0", "1"]),
        ("a.csv", ["cat|dog", "", "cow"], "label", [[1, 0, 1], [0, 0, 0], [0, 1, 0]], ["cat", "cow", "dog"]),
        ("a.csv", ["['cat', 'dog']", "[]", '["cow"]'], "label", [[1, 0, 1], [0, 0, 0], [0, 1, 0]], None),
        ("a.csv", ["[1, 0, 0]", "[1, 1, 0]", "[0, 0, 0]"], "label", [[1, 0, 0], [1, 1, 0], [0, 0, 0]], None),
        ("a.csv", ["3", "12", "3"], "label", [[1, 0], [0, 1], [1, 0]], ["3", "12"]),
        ("a.csv", ["[1 0 0]", "[1 1 0]", "[0 0 0]"], "label", [[1, 0, 0], [1, 1, 0], [0, 0, 0]], ["0", "1", "2"]),
        ("a.csv", ["1,0,0", "1,1,0", "0,0,0"], "label", [[1, 0, 0], [1, 1, 0], [0, 0, 0]], ["0", "1", "2"]),
        ("a.csv", [{"spam": True, "rude": False}, {"spam": True, "rude": True}], "spam,rude", [[1, 0], [1, 1]], None),
        ("a.csv", [{"spam": 1, "rude": 0}, {"spam": 1, "rude": 1}], "spam, rude", [[1, 0], [1, 1]], ["spam", "rude"]),
        ("a.csv", [{"spam": "0.0", "rude": "1.0"}, {"spam": 1, "rude": 0}], "spam,rude", [[0, 1], [1, 0]], None),
        ("a.jsonl", [{"spam": True, "rude": 0}, {"spam": 0, "rude": 1.0}], "spam,rude", [[1, 0], [0, 1]], None),
    ],
)
def test_labels_are_read_in_every_form(
    file: str, labels: list[Any], column: str, learned: list[Any], names: Any, tmp_path: Path
) -> None:
    where = table(tmp_path / file, labels)
    made = load(tmp_path / "code", "text_multilabel", data__train=where, data__label_column=column, data__eval=None)
    config = made.TaskConfig()
    data = made.load_train_data(config)
    assert data.labels == learned
    if names:
        assert made.classes_of(config).names == names
    assert said(where, column) == ""
    batch, count = made.collate([data[0], data[1]], [True, False])
    assert (batch["labels"].tolist(), batch["counted"].tolist(), count) == (learned[:2], [True, False], 1)


@pytest.mark.parametrize(
    ("labels", "column", "before", "says"),
    [
        ([{"label": {"a": 1}}, {"label": ["b"]}], "label", "not a list of classes", "cannot be lists of classes"),
        ([["b"], ["b"]], "label", "nothing to learn", "all 2 are alike"),
        ([[], []], "label", "nothing to learn", "all 2 are empty"),
        ([1.5, 2.5], "label", "not a list of classes", "cannot be lists of classes: 1.5"),
        ([[0.5, 1], [1, 0]], "label", "", "cannot be lists of classes"),
        ([["a"], [None]], "label", "", "cannot be lists of classes"),
        ([["a"], None], "label", 'line 2 has no label in the column "label"', ":2: column .label. is empty"),
        ([{"x": 1, "y": 2}, {"x": 0, "y": 0}], "x,y", "", r"cannot be flags of 2 classes: \[1, 2\]"),
        (["['a' 'b']", "['a']"], "label", "not a list of classes", "cannot be lists of classes"),
        (["[a, b]", "[a]"], "label", "not a list of classes", "cannot be lists of classes"),
        ([{"x": 1}, {"x": 0}], "x,y", 'no label in the column "y"', 'no column "y"'),
    ],
)
def test_what_cannot_be_learned_is_named_before_and_by_the_task(
    labels: list[Any], column: str, before: str, says: str, tmp_path: Path
) -> None:
    where = table(tmp_path / "a.jsonl", labels)
    assert before in said(where, column)
    made = load(tmp_path / "code", "text_multilabel", data__train=where, data__label_column=column, data__eval=None)
    with pytest.raises(SystemExit, match=says):
        made.load_train_data(made.TaskConfig())


def test_a_part_that_is_kept_and_other_files_use_the_classes_of_the_training_data(tmp_path: Path) -> None:
    where = table(tmp_path / "a.jsonl", [["ab"[i % 2], "c"][: 1 + i % 3] for i in range(40)])
    made = load(tmp_path / "code", "text_multilabel", data__train=where, data__eval="25%")
    config = made.TaskConfig()
    train, held = made.load_train_data(config), made.load_eval_data(config)
    assert (len(train), len(held)) == (30, 10)
    assert {len(row) for row in (*train.labels, *held.labels)} == {3}
    other = table(tmp_path / "b.jsonl", [["a"], ["d"]])
    with pytest.raises(SystemExit, match=r"b\.jsonl: no such class in .*a\.jsonl: d"):
        made.load_eval_data(made.TaskConfig(eval_data=other))
    other = table(tmp_path / "c.jsonl", [["a"], ["a"]])
    assert made.load_eval_data(made.TaskConfig(eval_data=other)).labels == [[1, 0, 0]] * 2


def test_a_pipeline_gives_each_label_a_probability_of_its_own(tmp_path: Path) -> None:
    name = published(tmp_path / "model", "bert")
    where = table(tmp_path / "a.jsonl", [["old"], ["new", "old"], []])
    values = {"data__train": where, "data__eval": None, "model__name": name, "model__from_scratch": False}
    made = load(tmp_path / "code", "text_multilabel", **values)
    config = made.TaskConfig()
    model = made.build_model(config)
    made.save_model(config, model, model.state_dict(), tmp_path / "saved")
    shape = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    assert (shape.id2label, shape.label2id) == ({0: "new", 1: "old"}, {"new": 0, "old": 1})
    tell = transformers.pipeline("text-classification", model=str(tmp_path / "saved"), top_k=None)
    found = {each["label"]: each["score"] for each in tell(["the old word"])[0]}
    ids = torch.tensor([made.Tokens(config).encode("the old word")])
    logits = model.eval()(ids, torch.ones_like(ids))[0]
    assert found == {
        name: pytest.approx(float(score), abs=1e-5)
        for name, score in zip(("new", "old"), logits.sigmoid(), strict=True)
    }
    lines = made.sample(config, tmp_path / "saved").splitlines()
    assert [line.partition(", seen as ")[0] for line in lines] == ["old", "new+old", "none"]
