"""Data as people have it: every format, several sources, and a part kept for evaluation."""

import contextlib
import csv
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import BASE
from projects import SMALL, make
from test_tasks import load
from warm import spawn

from trainwiz import plan as plans
from trainwiz.errors import PlanError
from trainwiz.probe.project import project
from trainwiz.probe.splits import of_folder

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.filterwarnings("default")
TEXTS = ["one", 'two, "quoted"', "three\nlines", "naïve 漢字", "NA"]
ROWS = [{"text": text, "label": n % 2} for n, text in enumerate(TEXTS)]


def table(delimiter: str) -> bytes:
    """A table with one row for each text."""
    written = io.StringIO()
    writer = csv.writer(written, delimiter=delimiter)
    writer.writerow(ROWS[0])
    writer.writerows(row.values() for row in ROWS)
    return written.getvalue().encode()


def lines() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def zst(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)  # type: ignore[no-any-return]


def parquet(file: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(str(file))


def arrow(file: Path) -> None:
    made = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)


def saved(folder: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(folder))


FORMATS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl": lambda file: file.write_bytes(lines()),
    "a.jsonl.gz": lambda file: file.write_bytes(gzip.compress(lines())),
    "a.jsonl.zst": lambda file: file.write_bytes(zst(lines())),
    "bom.jsonl": lambda file: file.write_bytes(b"\xef\xbb\xbf" + lines()),
    "a.json": lambda file: file.write_text(json.dumps(ROWS, indent=1)),
    "a.json.gz": lambda file: file.write_bytes(gzip.compress(json.dumps(ROWS).encode())),
    "a.csv": lambda file: file.write_bytes(table(",")),
    "a.csv.zst": lambda file: file.write_bytes(zst(table(","))),
    "a.tsv": lambda file: file.write_bytes(table("\t")),
    "a.parquet": parquet,
    "a.arrow": arrow,
    "saved": saved,
}


def sources() -> Any:
    """The generated module, after a task was loaded."""
    return sys.modules["sources"]


def texts(names: str, max_rows: int = 0) -> list[str]:
    return [sources().text_of(row, "text") for row in sources().Sources(names, "train", max_rows, texts=True)]


# docs/decisions/tasks.md: Rows are read as they are in their files
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_texts(name: str, tmp_path: Path) -> None:
    """And the probe sees their columns, and nothing wrong, before."""
    FORMATS[name](tmp_path / name)
    load(tmp_path, "causal_lm")
    assert texts(str(tmp_path / name)) == TEXTS
    facts = project(plans.with_changes(BASE, {"data.train": name}), str(tmp_path)).train
    assert facts
    assert facts.detail == ""
    assert facts.first["text"] == "one"
    reads = {"a.jsonl.zst", "a.csv.zst", "a.parquet", "a.arrow", "saved"}
    assert facts.packages == (("datasets",) if name in reads else ())


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "saved"])
@pytest.mark.parametrize("task", ["text_classification", "text_regression"])
def test_labels_come_from_every_format(task: str, name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name)
    made = load(tmp_path, task, data__train=str(tmp_path / name), data__eval=None)
    assert [float(label) for label in made.load_train_data(made.TaskConfig()).labels] == [0, 1, 0, 1, 0]


def test_several_sources_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    for name, text in (("a, b.jsonl", "0"), ("b/2.jsonl", "2"), ("b/deep/1.jsonl.gz", "3"), ("b/1.txt", "1")):
        content = text if name.endswith("txt") else json.dumps({"text": text}) + "\n" + json.dumps({"text": text * 2})
        file = tmp_path / name
        file.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    load(tmp_path, "causal_lm")
    assert texts(str(tmp_path / "a, b.jsonl")) == ["0", "00"], "one that exists, with a comma in its name"
    assert texts(str(tmp_path / "b")) == ["1", "2", "22", "3", "33"]
    assert texts(f"{tmp_path}/b/**/*.jsonl*, {tmp_path}/b/1.txt") == ["2", "22", "3", "33", "1"]
    assert texts(f"{tmp_path}/b/**/*.jsonl*, {tmp_path}/b/1.txt", max_rows=1) == ["2", "1"], "of each source"
    with pytest.raises(SystemExit, match="no file in a readable format"):
        texts(f"{tmp_path}/*.parquet")
    with pytest.raises(SystemExit, match="no such file or folder"):
        texts(f"{tmp_path}/b/2.jsonl,{tmp_path}/none.jsonl")


def rows(path: Path, *labels: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": f"{path.name} {n}", "label": n}) + "\n" for n in labels))


@pytest.mark.parametrize(
    ("train", "held_out"),
    [
        ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"),
        ("train.jsonl", "my_dev.jsonl"),
        ("train/a.jsonl", "val/a.jsonl"),
    ],
)
def test_files_named_by_their_part_are_not_mixed(train: str, held_out: str, tmp_path: Path) -> None:
    """As folders from the hub have them; the probe and the task agree, and the wizard evaluates on the other part."""
    rows(tmp_path / "ds" / train, 0, 1, 2)
    rows(tmp_path / "ds" / held_out, 0, 1)
    rows(tmp_path / "ds" / ".ipynb_checkpoints" / "train-checkpoint.jsonl", 0)
    (tmp_path / "ds" / "dataset_infos.json").write_text("{}")
    (tmp_path / "ds" / "README.md").write_text("about")
    where = str(tmp_path / "ds")
    made = load(tmp_path / "code", "text_classification", data__train=where, data__eval=where)
    config = made.TaskConfig()
    assert [len(made.load_train_data(config)), len(made.load_eval_data(config))] == [3, 2]
    plan = plans.with_changes(BASE, {"task": "text_classification", "data.train": "ds", "data.eval": "ds"})
    found = project(plan, str(tmp_path))
    assert found.train
    assert found.eval
    assert (found.train.samples, found.eval.samples, found.eval.shared, found.train.left_out) == (3, 2, "", ())
    assert found.train.evaluation_part in held_out
    rows(tmp_path / "ds" / "all.jsonl", 0, 1, 2, 0, 1)
    assert [len(list(sources().Sources(where, part))) for part in ("train", "validation")] == [3, 2], "not once more"
    found = project(plan, str(tmp_path))
    assert found.train
    assert found.eval
    assert (found.train.unnamed, found.eval.shared) == (("all.jsonl",), "")
    assert (found.train.samples, found.eval.samples) == (3, 2)
    (tmp_path / "ds" / "b.md").write_text("lost")
    assert project(plan, str(tmp_path)).train.left_out == ("b.md",)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("names", "training"),
    [
        ("train.txt test.txt other.txt", "train.txt"),
        ("a.csv test.csv", "a.csv"),
        ("a.csv test-results.csv", "a.csv test-results.csv"),
        ("training-manual.txt test-results.txt other.txt", "training-manual.txt test-results.txt other.txt"),
        ("dev.csv test.csv", "dev.csv test.csv"),
        ("train.csv other.csv", "train.csv other.csv"),
        ("my_train.csv my_test.csv my_all.csv", "my_train.csv"),
    ],
)
def test_files_without_a_part_in_their_names(names: str, training: str, tmp_path: Path) -> None:
    """The probe and the task agree on what is trained on."""
    load(tmp_path / "code", "causal_lm")
    for name in names.split():
        (tmp_path / "ds" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "ds" / name).write_text("text\nwords\n")
    read = sources().Sources(str(tmp_path / "ds"), "train", texts=True).all_files()
    assert sorted(file.name for file in read) == sorted(training.split())
    found = of_folder(tmp_path / "ds", (".csv", ".txt"), "train")
    assert sorted(file.name for file in found.files) == sorted(training.split())
    apart = {name for name in names.split() if "test" not in name and "dev" not in name}
    assert {*found.unnamed} == apart - {*training.split()}


@pytest.mark.parametrize(
    ("train", "held_out"), [("a.jsonl, ./a.jsonl", ""), ("a.jsonl,a.jsonl", ""), ("*.jsonl, a.jsonl", "*.jsonl")]
)
def test_a_file_that_is_named_twice_is_refused(train: str, held_out: str, tmp_path: Path, monkeypatch: Any) -> None:
    rows(tmp_path / "a.jsonl", 0, 1)
    monkeypatch.chdir(tmp_path)
    load(tmp_path, "text_classification")
    with pytest.raises(SystemExit, match="named twice among the sources"):
        sources().Sources(train, "train")
    changes = {"task": "text_classification", "data.train": train, "data.eval": held_out or None}
    found = project(plans.with_changes(BASE, changes), str(tmp_path))
    assert found.train
    assert found.train.detail == "a.jsonl is listed twice among the sources"
    assert (found.eval.shared if found.eval else "") == ("a.jsonl" if held_out else "")


@pytest.mark.parametrize(
    ("labels", "says", "before"),
    [(["x", "", "y"], "text 2 of 3 has '', which is empty", "line 3: the label is empty"), (["x", "y", "z"], "", "")],
)
def test_an_empty_label_is_no_class(labels: list[str], says: str, before: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"text,{label}\n" for label in labels))
    made = load(tmp_path, "text_classification", data__train=str(tmp_path / "a.csv"))
    with pytest.raises(SystemExit, match=says) if says else contextlib.nullcontext():
        made.load_train_data(made.TaskConfig())
    plan = plans.with_changes(BASE, {"task": "text_classification", "data.train": "a.csv"})
    assert before in project(plan, str(tmp_path)).train.detail  # type: ignore[union-attr]


def test_classes_with_numbers_are_in_their_order(tmp_path: Path) -> None:
    rows(tmp_path / "a.jsonl", *range(12))
    made = load(tmp_path, "text_classification", data__train=str(tmp_path / "a.jsonl"))
    assert made.load_train_data(made.TaskConfig()).labels == list(range(12))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "a.jsonl.gz",
            gzip.compress(lines() * 999, mtime=0)[:500],
            r"a.jsonl.gz: cannot be read( after .*:\d+)?: EOFError",
        ),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz: cannot be read: BadGzipFile"),
        ("a.jsonl.zst", b"no zstd", "a.jsonl.zst: cannot be read"),
        ("a.parquet", b"no parquet", "a.parquet: cannot be read"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n', "a.jsonl:2: not a JSON object: 'utf-8' codec"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": 5}\n', 'a.jsonl:2: column "text" is 5, which is not text'),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b", "n": 1, "text": "c"}\n', 'a.jsonl:2: the key "text" is given twice'),
        ("a.json", b'[{"text": "a"},\n {"text": "b"},\n {"t": {"x": 1, "x": 2}}]', 'a.json:3: item 3: the key "x" is'),
        ("a.jsonl", b"[1]", "a.jsonl: item 1: not a JSON object, but 1"),
        ("a.csv", b"text\nfine\ncaf\xe9\n", "a.csv:3: not valid UTF-8"),
        ("a.csv", b'text,n\n"one\ntwo",1\nthree\n', "a.csv:4: fields: 1, but line 1 names 2 columns"),
        ("a.csv", b"\n\ntext\n", "a.csv:3: fields: 1, but line 1 names 0 columns"),
        ("a.csv", b"text,n\none,1\ntext,n\n", "a.csv:3: the names of the columns again; delete this line"),
        ("a.csv", b"text,text\na,b\n", "a.csv:1: two columns have the same name"),
        ("a.txt", b"one\ncaf\xe9\n", "a.txt:2: not valid UTF-8"),
        ("a.txt", "one\ntwo\n".encode("utf-16-le"), "a.txt:1: zero bytes in a text: it is in UTF-16, or not a text"),
    ],
)
def test_what_is_damaged_is_named_with_its_line(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    load(tmp_path, "causal_lm")
    with pytest.raises(SystemExit, match=says):
        texts(str(tmp_path / name))


# docs/decisions/tasks.md: What is kept for evaluation is chosen by hashes
@pytest.mark.parametrize("part", ["5%", "12"])
def test_a_part_is_kept_for_evaluation_and_never_trained_on(part: str, tmp_path: Path) -> None:
    """Whatever the order of the rows; and equal documents are on one side."""
    rows = [{"text": f"document number {n % 220}", "label": n % 2} for n in range(240)]
    random = np.random.default_rng(0)
    parts = []
    for order in (range(240), random.permutation(240)):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(rows[n]) + "\n" for n in order))
        changes = {"data__train": str(tmp_path / "a.jsonl"), "data__eval": part, "data__packing": False}
        task = load(tmp_path / "lm", "causal_lm", **changes)
        config = task.TaskConfig(cache_dir=str(tmp_path / "cache"))
        train, held_out = (
            sorted(bytes(row[0].tolist()) for row in data)
            for data in (task.load_train_data(config), task.load_eval_data(config))
        )
        assert len(train) + len(held_out) == 240
        assert not set(train) & set(held_out)
        assert 12 <= len(held_out) <= 14, "all of those that are equal to the last one"
        parts.append((train, held_out))
        made = load(tmp_path / "classes", "text_classification", **changes)
        config = made.TaskConfig()
        data = made.load_train_data(config), made.load_eval_data(config)
        assert sum(map(len, data)) == 240
        texts = made.labeled(config.train_data, "train", *made.reading(config))
        both = [made.part_of(texts, part, evaluation=evaluation) for evaluation in (False, True)]
        assert list(map(len, both)) == list(map(len, data))
        assert not set(both[0]) & set(both[1])
    assert parts[0] == parts[1]


@pytest.mark.parametrize(("part", "says"), [("1%", "are 0"), ("99%", "are 3"), ("3", "are 3")])
def test_a_part_that_leaves_nothing_is_refused(part: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(3)))
    task = load(tmp_path, "causal_lm", data__train=str(tmp_path / "a.jsonl"), data__eval=part)
    with pytest.raises(SystemExit, match=f"{part} of 3 samples {says}: nothing would be left"):
        task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "cache")))


def test_documents_of_other_lengths_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(1, 21)))
    changes = {"data__train": str(tmp_path / "a.jsonl"), "data__min_tokens": 5, "data__max_tokens": 11}
    task = load(tmp_path, "causal_lm", data__packing=False, **changes)
    data = task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "cache")))
    assert [row.shape[1] for row in data] == list(range(4, 11)), "each token but the first is predicted"
    assert "documents of 5 to 11 tokens: 7 of 20" in capsys.readouterr().out


def test_a_plan_takes_one_source_or_a_list() -> None:
    assert plans.with_changes(BASE, {"data.train": ["a.jsonl", " b/*.gz"]}).data.train == "a.jsonl, b/*.gz"
    assert plans.with_changes(BASE, {"data.train": "a.jsonl"}).data.train == "a.jsonl"
    for wrong in (["a,b.jsonl"], [""], [5]):
        with pytest.raises(PlanError, match="or contain commas"):
            plans.with_changes(BASE, {"data.train": wrong})


@pytest.mark.train
def test_a_training_evaluates_on_its_part_alike_on_one_rank_and_two(tmp_path: Path) -> None:
    """Two sources in two formats, of which a tenth is kept: the curves are one, and so are the evaluations."""
    rows = [{"body": f"document {n} has {'many ' * (n % 13)}words"} for n in range(90)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows[:60]).encode()))
    (tmp_path / "b.csv").write_text("\n".join(["body", *(row["body"] for row in rows[60:])]))
    values = {**SMALL, "data.train": f"{tmp_path}/a.jsonl.gz, {tmp_path}/b.csv", "data.eval": "10%"}
    folder = make(tmp_path / "project", {**values, "schedule.n_steps": 4})
    found = []
    for ranks in (1, 2):
        output = tmp_path / str(ranks)
        split = {"num_processes": ranks, "per_device_batch_size": 4, "gradient_accumulation_steps": 4 // ranks}
        assert spawn(folder, ranks, output, split) == 0
        records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        found.append([[each[name] for each in records if name in each] for name in ("loss", "eval_loss")])
    assert [len(found[0][0]), len(found[0][1]) >= 1] == [4, True]
    for one, two in zip(*found, strict=True):
        assert two == pytest.approx(one, rel=1e-5)
