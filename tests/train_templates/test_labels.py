"""Classes: what is one, in which order they are, their names from datasets, and pictures that tables hold."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image
from plans import BASE
from test_checkpoints import SAMPLES, Training, end
from test_tasks import _forget_modules, draw, load  # noqa: F401

from trainwiz import plan as plans
from trainwiz.probe.project import project

datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.filterwarnings("default")

TEXTS = ("a good day", "a bad day", "a day", "good")


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    load(tmp_path_factory.mktemp("code"), "text_classification")
    import labels as made

    return made


def said(where: Path, **changes: Any) -> str:
    """What is said of the data before the training."""
    values = {"task": "text_classification", "data.train": str(where), "data.eval": None, **changes}
    found = project(plans.with_changes(BASE, values), str(where.parent)).train
    assert found
    return found.detail


def csv_of(where: Path, words: list[str]) -> Path:
    where.write_text("text,label\n" + "".join(f"{text},{word}\n" for text, word in zip(TEXTS, words, strict=False)))
    return where


def named(column: list[Any], feature: Any) -> Any:
    features = datasets.Features({"text": datasets.Value("string"), "label": feature})
    return datasets.Dataset.from_dict({"text": TEXTS[: len(column)], "label": column}, features=features)


# docs/decisions/tasks.md: What is written differently in a .csv file is another class
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["007", "7", "10"], ["007", "7", "10"]),
        (["1.0", "1", "2"], ["1", "1.0", "2"]),
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["True", "true", "x"], ["True", "true", "x"]),
        ([3.0, 1, 3], ["1", "3"]),
        ([True, False, True], ["False", "True"]),
    ],
)
def test_each_word_is_a_class(words: list[Any], names: list[str], labels: ModuleType, tmp_path: Path) -> None:
    """`007` and `7` were one."""
    as_read = labels.as_classes(words)
    labels.refuse_alike("a.csv", as_read)
    assert sorted(labels.in_order(as_read)) == sorted(names)
    assert [float(x) for x in labels.in_order(as_read)] == sorted(map(float, names)) if words[0] in ("007", "10") else 1
    if isinstance(words[0], str):
        assert said(csv_of(tmp_path / "a.csv", words)) == ""


@pytest.mark.parametrize("words", [[" a", "a", "b"], [1, "1", 2], [True, "True", "x"], ["7", "7 ", "8"], [1, True, 0]])
def test_words_that_look_alike_are_refused(words: list[Any], labels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="look alike; write them in one way, or give them different names"):
        labels.refuse_alike("a.csv", words)
    where = tmp_path / "a.jsonl"
    where.write_text(
        "".join(json.dumps({"text": text, "label": x}) + "\n" for text, x in zip(TEXTS, words, strict=False))
    )
    assert "look the same" in said(where)


def test_fractions_are_still_no_classes(labels: ModuleType, tmp_path: Path) -> None:
    assert labels.as_classes(["0.5", "1", "007"]) == [0.5, 1.0, 7.0]
    assert "is a fraction" in said(csv_of(tmp_path / "a.csv", ["0.5", "1", "007"]))


# docs/decisions/tasks.md: Classes of a ClassLabel column keep the numbers of the dataset
@pytest.mark.parametrize("kind", ["parquet", "saved", "arrow"])
def test_names_of_datasets_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    """They were 0 and 1. Their order is that of the dataset, and a name that no text has stays an output."""
    table = named([1, 0, 3], datasets.ClassLabel(names=["spam", "ham", "eggs", "bacon"]))
    where = tmp_path / ("texts" if kind == "saved" else f"texts.{kind}")
    if kind == "parquet":
        table.to_parquet(where)
    else:
        table.save_to_disk(tmp_path / "texts")
    if kind == "arrow":
        (tmp_path / "texts" / "data-00000-of-00001.arrow").rename(where)
    made = load(tmp_path / "code", "text_classification", data__train=str(where), data__eval=None)
    data = made.load_train_data(made.TaskConfig())
    assert (data.classes, data.labels) == (["spam", "ham", "eggs", "bacon"], [1, 0, 3])
    model = made.build_model(made.TaskConfig())
    assert model.config.id2label == {0: "spam", 1: "ham", 2: "eggs", 3: "bacon"}
    assert model.config.label2id == {"spam": 0, "ham": 1, "eggs": 2, "bacon": 3}
    found = project(plans.with_changes(BASE, {"task": "text_classification", "data.train": str(where)}), str(tmp_path))
    assert found.train
    assert str(found.train.first.get("label")) == "ham"


def test_lists_of_named_labels_keep_their_names(tmp_path: Path) -> None:
    feature = [datasets.ClassLabel(names=["rude", "kind", "long"])]
    named([[0, 1], [1], []], feature if not hasattr(datasets, "List") else datasets.List(feature[0])).to_parquet(
        tmp_path / "a.parquet"
    )
    made = load(tmp_path / "code", "text_multilabel", data__train=str(tmp_path / "a.parquet"), data__eval=None)
    data = made.load_train_data(made.TaskConfig())
    assert (data.classes, data.labels) == (["rude", "kind", "long"], [[1, 1, 0], [0, 1, 0], [0, 0, 0]])


def test_a_label_that_is_not_known_is_refused(tmp_path: Path) -> None:
    named([1, -1], datasets.ClassLabel(names=["a", "b"])).to_parquet(tmp_path / "a.parquet")
    made = load(tmp_path / "code", "text_classification", data__train=str(tmp_path / "a.parquet"), data__eval=None)
    with pytest.raises(SystemExit, match='row 2: column "label" is empty'):
        made.load_train_data(made.TaskConfig())


# docs/decisions/checkpoints.md: A resume compares the classes
@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (["a", "b"], ["a", "b"], ""),
        (["a", "b"], ["b", "a"], "they were 2, and are 2 now; the first change: ('a', 'b')"),
        (["a", "b"], ["a", "b", "c"], "are 3 now; the first change: (None, 'c')"),
        (None, [str(i) for i in range(10)], ""),
        (None, [str(i) for i in range(11)], "may have had these 11 in another order"),
        (None, ["b", "a"], "in another order"),
    ],
)
def test_a_resume_compares_the_classes(before: Any, now: list[str], says: str, labels: ModuleType) -> None:
    found = labels.other_classes(before, now)
    assert says in found
    assert bool(says) == bool(found)


def test_a_checkpoint_with_other_classes_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    load(tmp_path / "code", "text_classification")
    monkeypatch.syspath_prepend(tmp_path / "code")
    made = importlib.import_module("checkpoints")

    def start(classes: list[str]) -> Training:
        training = Training(made, tmp_path / "run")
        training.checkpoints.classes = classes
        return training

    first = start(["a", "b"])
    first.checkpoints.resume(SAMPLES)
    end(first.train(1))
    other = start(["b", "a"])
    with pytest.raises(SystemExit, match="has learned other classes: they were 2, and are 2 now; the first change"):
        other.checkpoints.resume(SAMPLES)
    end(other)
    assert other.loaded == ""
    same = start(["a", "b"])
    assert same.checkpoints.resume(SAMPLES) == 1
    end(same)


def test_numbers_with_names_had_another_order_beyond_ten(labels: ModuleType) -> None:
    eleven = tuple("abcdefghijk")
    named_numbers = labels.in_order([labels.Named(i, eleven) for i in (3, 1)])
    assert named_numbers == [*eleven]
    assert labels.other_classes(None, named_numbers)
    assert not labels.other_classes(None, labels.in_order([*eleven]))


@pytest.mark.parametrize("kind", ["parquet", "folder", "saved"])
def test_pictures_inside_tables_are_learned(kind: str, tmp_path: Path) -> None:
    """`datasets` stores them as bytes and a name, which was refused as no string."""
    files = sorted(draw(tmp_path / "drawn", {"cat": 2, "dog": 2}).rglob("*.png"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])})
    rows = [{"path": file.name, "bytes": file.read_bytes()} for file in files]
    table = datasets.Dataset.from_dict({"image": rows, "label": [1, 1, 0, 0]}, features=features)
    where = tmp_path / ("a.parquet" if kind == "parquet" else "pets")
    if kind == "saved":
        table.save_to_disk(where)
    else:
        (where / "data" if kind == "folder" else tmp_path).mkdir(parents=True, exist_ok=True)
        table.to_parquet(where if kind == "parquet" else where / "data" / "train-00000-of-00001.parquet")
    assert said(where, task="image_classification") == ""
    made = load(tmp_path / "code", "image_classification", data__train=str(where), data__eval="50%")
    config = made.TaskConfig(image_size=8)
    data, held_out = made.load_train_data(config), made.load_eval_data(config)
    assert (data.classes, len(data), len(held_out)) == (["dog", "cat"], 2, 2)
    learned = {
        pixels.numpy().tobytes(): label for each in (data, held_out) for pixels, label in map(each.__getitem__, (0, 1))
    }
    for file, label in zip(files, [1, 1, 0, 0], strict=True):
        assert learned[data.read(file).transpose(2, 0, 1).tobytes()] == label


def test_damaged_pictures_are_found_before_the_training(tmp_path: Path) -> None:
    draw(tmp_path / "pets", {"cat": 2, "dog": 3})
    file = tmp_path / "pets" / "dog" / "0.png"
    Image.effect_noise((64, 64), 50).save(tmp_path / "pets" / "cat" / "9.jpg")
    whole = (tmp_path / "pets" / "cat" / "9.jpg").read_bytes()
    made = load(tmp_path / "code", "image_classification", data__train=str(tmp_path / "pets"), data__eval=None)
    config = made.TaskConfig(image_size=8)
    (tmp_path / "pets" / "cat" / "9.jpg").write_bytes(whole + bytes(5000))  # as telephones put films behind them
    data = made.load_train_data(config)
    for content in (b"", file.read_bytes()[:90], b"<html>404</html>", whole[: len(whole) // 2]):
        file.write_bytes(content)
        made.pictures.read_one.cache_clear()
        with pytest.raises(SystemExit, match=r"dog/0\.png: not a whole picture; of 6, 1 are empty, cut off or"):
            made.load_train_data(config)
        with pytest.raises(OSError, match=r"dog/0\.png: not a whole picture: "):
            data.read(file)
