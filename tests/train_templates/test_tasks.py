"""The tasks with labels: their data, their metrics against scikit-learn's, and real training on two ranks."""

import hashlib
import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import projects
import pytest
import test_training
import torch
import warm
from engine_children import claimed
from patience import patience
from PIL import Image
from plans import BASE
from projects import CLOCKED, SMALL, make, metrics
from safetensors.torch import load_file
from test_training import ON_STANDIN, STRATEGIES
from warm import spawn

from trainwiz import plan as plans
from trainwiz.probe import splits
from trainwiz.probe.project import project
from trainwiz.render import script
from trainwiz.store import templates
from trainwiz.tasks import named

pytestmark = pytest.mark.filterwarnings("default")

GENERATED = (
    *(
        "task",
        "train",
        "adapter",
        "attention",
        "augmentation",
        "average",
        "batches",
        "buckets",
        "chat",
        "chat_template",
        "checkpoints",
        "checks",
        "conversations",
    ),
    *(
        "column_names",
        "definitions",
        "documents",
        "encoders",
        "evaluation",
        "experts",
        "first_rank",
        "flops",
        "four_bits",
        "fp8",
        "frequencies",
        "frozen",
        "generation",
        "head_loss",
        "heads",
        "hooks",
        "kernels",
        "labels",
        "logits",
        "long_rows",
        "manifest",
        "meter",
        "metrics",
        "mixture",
        "model_folder",
        "multilabel",
        "network",
        "new_tokens",
        "nf4",
    ),
    *(
        "noise",
        "numa",
        "optimizers",
        "packing",
        "pairs",
        "pictures",
        "preferences",
        "python_questions",
        "recompute",
        "references",
        "resharding",
        "rows",
        "schedule",
        "scores",
    ),
    *(
        "sharding",
        "source_weights",
        "sources",
        "splits",
        "json_rows",
        "staging",
        "streams",
        "texts",
        "token_cache",
        "tracking",
        "transcripts",
        "trust",
    ),
)
IMAGES = {**SMALL, "task": "image_classification", "data.eval": "embedded"}
AGES = {**SMALL, "task": "image_regression", "data.eval": "embedded"}
TAGS = {**SMALL, "task": "image_multilabel", "data.eval": "embedded", "data.augmentation": "color"}
TEXTS = {**SMALL, "task": "text_classification", "data.eval": "embedded"}
SCORES = {**SMALL, "task": "text_regression", "data.eval": "embedded"}
TOPICS = {**SMALL, "task": "text_multilabel", "data.eval": "embedded"}


def load(folder: Path, task: str, name: str = "task", **changes: Any) -> ModuleType:
    """The generated task.py (or train.py, with its task.py), imported."""
    values = {key.replace("__", "."): value for key, value in changes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for artifact in script.scripts(plans.with_changes(BASE, {"task": task, **values}), templates.load()):
        (folder / artifact.path).write_text(artifact.text)
    for module in GENERATED:
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        # Compiled code would count for a file of the same length that is written within the same second.
        patch.setattr(sys, "dont_write_bytecode", True)
        return importlib.import_module(name)


@pytest.fixture(autouse=True)
def _forget_modules() -> Any:
    yield
    for name in GENERATED:
        sys.modules.pop(name, None)


def draw(folder: Path, classes: dict[str, int], size: tuple[int, int] = (12, 10)) -> Path:
    """A folder of pictures, one folder per class."""
    random = np.random.default_rng(0)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("image_classification", "tiny"),
        ("image_classification", "resnet18"),
        ("image_regression", "tiny"),
        ("image_multilabel", "tiny"),
        ("text_classification", "tiny"),
        ("text_regression", "tiny"),
        ("text_multilabel", "tiny"),
    ],
)
def test_the_formula_counts_what_the_task_builds(task: str, name: str, tmp_path: Path) -> None:
    made = load(tmp_path, task, model__name=name)
    model = made.build_model(made.TaskConfig())
    assert sum(p.numel() for p in model.parameters()) == named(task).presets[name].parameters


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("task", ["image_classification", "text_classification", "text_regression", "text_multilabel"])
def test_the_probe_counts_the_samples_that_the_task_makes(task: str, tmp_path: Path) -> None:
    draw(tmp_path / "pets", {"cat": 3, "dog": 4})
    (tmp_path / "pets" / "readme.md").write_text("not a picture")
    np.savez(tmp_path / "a.npz", images=np.zeros((5, 8, 8), np.uint8), labels=np.array([0, 1, 2, 1, 0]))
    rows = [{"text": f"number {i}", "label": i % 2} for i in range(9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = ["pets", "a.npz"] if task == "image_classification" else ["rows.jsonl"]
    for name in ["embedded", *names]:
        where = name if name == "embedded" else str(tmp_path / name)
        made = load(tmp_path / "code", task, data__train=where, data__eval=where)
        changes = {"task": task, "data.train": where, "data.eval": where}
        found = project(plans.with_changes(BASE, changes), str(tmp_path))
        assert found.train
        assert found.eval
        assert found.train.samples == len(made.load_train_data(made.TaskConfig()))
        assert found.eval.samples == len(made.load_eval_data(made.TaskConfig()))
        assert (found.train.detail, found.eval.detail) == ("", "")


def test_what_cannot_be_read_is_named_before_and_in_the_task(tmp_path: Path) -> None:
    draw(tmp_path / "loose", {".": 2})
    draw(tmp_path / "pets", {"cat": 1, "dog": 1})
    draw(tmp_path / "more", {"cat": 1, "cow": 1})
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "floats.npz", images=np.zeros((2, 8, 8)), labels=np.array([0, 1]))
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "class": 1}\n')
    pictures = {"loose": "one folder per class", "floats.npz": "not uint8", "pest": "did you mean pets"}
    for name, detail in {**pictures, "rows.jsonl": 'no column "image"'}.items():
        plan = plans.with_changes(BASE, {"task": "image_classification", "data.train": name})
        found = project(plan, str(tmp_path)).train
        assert found
        assert detail in found.detail
    plan = plans.with_changes(BASE, {"task": "text_classification", "data.train": "rows.jsonl"})
    found = project(plan, str(tmp_path)).train
    assert found
    assert 'line 1 has no label in the column "label"; it has text, class' in found.detail
    made = load(tmp_path / "code", "image_classification", data__train=str(tmp_path / "pets"))
    for name, says in {
        "loose": "pictures that would be left out: 2",
        "empty": "no images",
        "floats.npz": "not bytes",
        "more": "cow",
    }.items():
        with pytest.raises(SystemExit, match=says):
            made.load_eval_data(made.TaskConfig(eval_data=str(tmp_path / name)))
    made = load(tmp_path / "code", "text_classification", data__train=str(tmp_path / "rows.jsonl"))
    with pytest.raises(SystemExit, match=r'rows\.jsonl:1: no column "label"; it has text, class'):
        made.load_train_data(made.TaskConfig())


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "b", "label": None}, 'column "label" is empty'),
        ({"text": None, "label": 1}, 'column "text" is None, which is not text'),
    ],
)
def test_what_has_no_text_or_label_is_named(row: dict[str, object], says: str, tmp_path: Path) -> None:
    """A missing label is no class of its own."""
    rows = [{"text": "a", "label": 1}, row]
    (tmp_path / "rows.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n\n")
    made = load(tmp_path, "text_classification", data__train=str(tmp_path / "rows.jsonl"))
    with pytest.raises(SystemExit, match=rf"rows\.jsonl:3: {says}"):
        made.load_train_data(made.TaskConfig())


@pytest.mark.parametrize(
    ("one", "other"), [("sentence1", "sentence2"), ("text_b", "text_a"), ("premise", "hypothesis")]
)
def test_one_text_of_a_pair_is_refused_before_and_in_the_task(one: str, other: str, tmp_path: Path) -> None:
    rows = [{one: "a", other: "b", "label": 0}, {one: "c", other: "d", "label": 1}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    changes = {"data.train": str(tmp_path / "rows.jsonl"), "data.text_column": one}
    plan = plans.with_changes(BASE, {"task": "text_classification", **changes})
    facts = project(plan, str(tmp_path)).train
    assert facts
    assert f'"{one}" and "{other}" are two texts that belong together' in facts.detail
    made = load(tmp_path / "code", "text_classification", **changes)
    with pytest.raises(SystemExit, match=rf"rows\.jsonl:1: {one} and {other} are two texts that belong together"):
        made.load_train_data(made.TaskConfig())


@pytest.mark.parametrize(
    ("labels", "script", "probe"),
    [
        (
            [0.25 * i for i in range(9)],
            "text 2 of 9 has 0.25, a fraction; 9 labels differ",
            "line 2: the label 0.25 is",
        ),
        (
            [[0, 1, 0], [1, 0, 0]],
            "has [0, 1, 0], a list with one 1; write its index instead: 1",
            "write its index instead: 1",
        ),
        ([["a", "b"], ["a"]], "has ['a', 'b']; each text has one class", 'the label ["a", "b"] is not a single name'),
        ([{"a": 1}, {"b": 1}], "has {'a': 1}; each text has one class", 'the label {"a": 1} is not a single name'),
        (["x"] * 7, "all 7 are 'x'", "all 7 labels are x; a classifier needs two"),
    ],
    ids=["fractions", "one-hot", "lists", "objects", "alike"],
)
def test_labels_that_are_no_classes_are_refused_before_and_in_the_task(
    labels: list[Any], script: str, probe: str, tmp_path: Path
) -> None:
    rows = [json.dumps({"text": f"number {i}", "label": label}) for i, label in enumerate(labels)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    where = str(tmp_path / "rows.jsonl")
    found = project(plans.with_changes(BASE, {"task": "text_classification", "data.train": where}), str(tmp_path)).train
    assert found
    assert probe in found.detail
    made = load(tmp_path, "text_classification", data__train=where)
    with pytest.raises(SystemExit, match=f"these labels cannot be classes: .*{re.escape(script)}"):
        made.load_train_data(made.TaskConfig())


def test_whole_numbers_with_a_point_are_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"text": f"number {i}", "label": label}) for i, label in enumerate([0.0, 1.0, 1])]
    rows.append(json.dumps({"text": " ", "label": 0}))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    where = str(tmp_path / "rows.jsonl")
    made = load(tmp_path, "text_classification", data__train=where)
    assert made.load_train_data(made.TaskConfig()).labels == [0, 1, 1, 0]
    assert "rows.jsonl: 1 of 4 texts are empty, and learned with their labels" in capsys.readouterr().out
    found = project(plans.with_changes(BASE, {"task": "text_classification", "data.train": where}), str(tmp_path)).train
    assert found
    assert (found.detail, found.samples) == ("", 4)


@pytest.mark.parametrize(
    ("labels", "says", "probe"),
    [
        (
            np.array([0.5, 1.0, 0.0, 1.0]),
            r"image 1 of 4 has 0\.5, a fraction",
            "1 of the first 4 labels are fractions, such as 0.5",
        ),
        (np.eye(4, dtype=np.int64), r"image 1 of 4 has \[1, 0, 0, 0\], a list with one 1", "its labels are a table"),
        (np.array([2, 2, 2, 2]), "all 4 are '2'", "all 4 labels are 2"),
    ],
    ids=["fractions", "one-hot", "alike"],
)
def test_labels_of_arrays_that_are_no_classes_are_refused(labels: Any, says: str, probe: str, tmp_path: Path) -> None:
    where = str(tmp_path / "a.npz")
    np.savez(where, images=np.zeros((4, 8, 8), dtype=np.uint8), labels=labels)
    made = load(tmp_path, "image_classification", data__train=where)
    with pytest.raises(SystemExit, match=f"these labels cannot be classes: {says}"):
        made.load_train_data(made.TaskConfig())
    found = project(
        plans.with_changes(BASE, {"task": "image_classification", "data.train": where}), str(tmp_path)
    ).train
    assert found
    assert probe in found.detail


def test_folders_named_train_and_val_split_the_images(tmp_path: Path) -> None:
    """They were two classes, or one with a loss of 0."""
    for name, count in {"train": 3, "val": 2}.items():
        draw(tmp_path / "pets" / name, {"cat": count, "dog": count + 1})
    where = str(tmp_path / "pets")
    made = load(tmp_path / "code", "image_classification", data__train=where, data__eval=where)
    config = made.TaskConfig()
    assert made.class_names(config) == ["cat", "dog"]
    assert (len(made.load_train_data(config)), len(made.load_eval_data(config))) == (7, 5)
    changes = {"task": "image_classification", "data.train": where, "data.eval": where}
    facts = project(plans.with_changes(BASE, changes), str(tmp_path))
    assert facts.train
    assert facts.eval
    assert (facts.train.samples, facts.eval.samples, facts.train.parts) == (7, 5, ("train", "val"))
    assert splits.PARTS == made.pictures.splits.PARTS

    shutil.rmtree(tmp_path / "pets" / "val")
    facts = project(plans.with_changes(BASE, changes), str(tmp_path))
    assert facts.eval
    assert "no images to evaluate on" in facts.eval.detail
    made.pictures.read_one.cache_clear()
    with pytest.raises(SystemExit, match="it contains train, but no images to evaluate on, such as in val"):
        made.load_eval_data(config)
    shutil.rmtree(tmp_path / "pets" / "train" / "dog")
    facts = project(plans.with_changes(BASE, changes), str(tmp_path))
    assert facts.train
    assert "all 3 images have the same class, cat" in facts.train.detail
    made.pictures.read_one.cache_clear()
    with pytest.raises(SystemExit, match="all 3 are 'cat'"):
        made.load_train_data(config)


@pytest.mark.train
def test_a_loss_of_zero_at_the_first_update_ends_the_training(tmp_path: Path) -> None:
    folder = make(tmp_path / "project", projects.REGRESSION)
    task = folder / "task.py"
    task.write_text(f"{task.read_text()}\n\nwhole = loss_sum\nloss_sum = lambda *given: 0 * whole(*given)\n")
    done = warm.launch(folder)
    assert done.code != 0
    assert "update 1: the loss is 0, so there is nothing to learn: are all labels alike?" in done.err + done.out


@pytest.mark.parametrize(
    ("shape", "labels", "says"),
    [
        ((4, 3, 8, 8), [0, 1, 0, 1], r"images are \(4, 3, 8, 8\), not"),
        ((4, 8, 8), [0, 1, 0], r"labels \(3,\); each image needs one"),
        ((4, 8, 8), [0, 1, -1, 1], "no such class in .*: -1"),
        ((4, 8, 8), [0, 1, 0, 5], "no such class in .*: 5"),
    ],
)
def test_arrays_that_do_not_go_together_are_named(
    shape: tuple[int, ...], labels: list[int], says: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "good.npz", images=np.zeros((4, 8, 8), dtype=np.uint8), labels=np.array([0.0, 1.0, 0.0, 1.0]))
    np.savez(tmp_path / "bad.npz", images=np.zeros(shape, dtype=np.uint8), labels=np.array(labels))
    made = load(tmp_path, "image_classification", data__train=str(tmp_path / "good.npz"))
    config = made.TaskConfig(eval_data=str(tmp_path / "bad.npz"))
    assert made.load_train_data(config)[1][1] == 1
    with pytest.raises(SystemExit, match=says):
        made.load_eval_data(config)


def test_a_picture_that_is_cut_off_is_named(tmp_path: Path) -> None:
    draw(tmp_path / "pets", {"cat": 1, "dog": 1}, (40, 40))
    cut = tmp_path / "pets" / "dog" / "0.png"
    cut.write_bytes(cut.read_bytes()[:1000])
    made = load(tmp_path / "code", "image_classification", data__train=str(tmp_path / "pets"))
    with pytest.raises(SystemExit, match=r"dog/0\.png: not a whole picture; of 2, 1 are"):
        made.load_train_data(made.TaskConfig())


def test_models_for_pictures_are_named(tmp_path: Path) -> None:
    for changes, detail in (
        ({"model.name": "resnet19"}, "did you mean resnet18"),
        ({"model.name": "vit_base"}, "networks of timm are named timm/NAME"),
        ({"model.name": "tiny", "model.from_scratch": False}, "no published weights"),
    ):
        found = project(plans.with_changes(BASE, {"task": "image_classification", **changes}), str(tmp_path)).model
        assert found
        assert (found.kind, detail in found.detail) == ("missing", True)


# docs/decisions/tasks.md: Each sample's augmentation has its own generator
def test_augmentation_is_a_function_of_its_key(tmp_path: Path) -> None:
    """The loop keys it by seed, epoch and index; evaluation pictures stay as they are."""
    train = load(tmp_path, "image_classification", "train")
    config = train.Config(real_batch_size=8, per_device_batch_size=8, gradient_accumulation_steps=1)
    data, held_out = train.task.load_train_data(config), train.task.load_eval_data(config)
    samples = sys.modules["batches"].Padded
    padded = samples(data)
    per_epoch = 180
    seen: dict[int, list[Any]] = {}
    for update in (0, per_epoch, 2 * per_epoch):  # the same update twice, and the first of the next epochs
        for keyed in next(iter(train.RealBatches(config, len(data), 0, update, update + 1))):
            (once, label), _ = padded[keyed]
            (twice, _), counts = padded[keyed]
            assert torch.equal(once, twice)
            assert counts
            assert once.shape == data[keyed[0]][0].shape
            assert label == data[keyed[0]][1]
            seen.setdefault(keyed[0], []).append(keyed[1])
    assert len({key for keys in seen.values() for key in keys}) == 24, "every epoch and index has a key of its own"
    few = [dict(next(iter(train.RealBatches(config, 8, 0, epoch, epoch + 1)))) for epoch in range(2)]
    assert few[0].keys() == few[1].keys()
    assert not set(few[0].values()) & set(few[1].values()), "the next epoch sees other pictures"
    views = {padded[0, key][0][0].numpy().tobytes() for key in range(20)}
    assert len(views) > 5
    assert all(torch.equal(samples(held_out)[3, key][0][0], held_out[3][0]) for key in range(5))


# docs/decisions/tasks.md: The residual network uses group norm
def test_a_picture_is_seen_alike_in_any_company(tmp_path: Path) -> None:
    made = load(tmp_path, "image_classification")
    model, data = made.build_model(made.TaskConfig()).double(), made.load_train_data(made.TaskConfig())
    pictures = torch.stack([data[i][0] for i in range(6)])
    torch.testing.assert_close(model(pictures[:1]), model(pictures)[:1])


# docs/decisions/loop.md: Evaluation adds up sums, and the task turns them into metrics
@pytest.mark.parametrize("task", ["image_classification", "text_classification"])
def test_metrics_are_scikit_learns_without_the_padded_samples(task: str, tmp_path: Path) -> None:
    from sklearn.metrics import accuracy_score, f1_score  # not by every worker that collects tests

    made, random = load(tmp_path, task), np.random.default_rng(1)
    logits = torch.from_numpy(random.normal(size=(5, 8, 8)))
    logits[..., 7] = -9  # never occurs, and is never guessed
    labels = torch.from_numpy(random.integers(0, 6, (5, 8)))  # class 6 never occurs, but is guessed
    labels[4, 3:] = made.IGNORED
    inputs = {"pictures": torch.zeros(8), "inputs": torch.zeros(8), "mask": torch.zeros(8)}
    sums: Any = 0
    for part, answers in zip(logits, labels, strict=True):
        model = lambda *_, given=part, **__: given  # noqa: E731
        sums = sums + made.evaluation_sums(model, {**inputs, "labels": answers}).double()
    found = made.evaluation_metrics(sums.tolist())
    counted = labels.flatten() != made.IGNORED
    truth, guess = labels.flatten()[counted], logits.argmax(2).flatten()[counted]
    assert found["eval_accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert found["eval_f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1)[counted], truth)
    assert found["eval_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_errors_of_numbers_are_scikit_learns_without_the_padded_samples(tmp_path: Path) -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    made, random = load(tmp_path, "text_regression"), np.random.default_rng(1)
    labels = torch.from_numpy(1000 + random.normal(size=(5, 8))).float()
    predicted = labels + torch.from_numpy(random.normal(scale=0.5, size=(5, 8))).float()
    counted = torch.ones(5, 8, dtype=torch.bool)
    counted[4, 3:] = False
    sums: Any = 0
    for answers, truth, counts in zip(predicted, labels, counted, strict=True):
        model = lambda *_, given=answers: given[:, None]  # noqa: E731
        batch = {"inputs": torch.zeros(8), "mask": torch.zeros(8), "labels": truth, "counted": counts}
        sums = sums + made.evaluation_sums(model, batch).double()
        assert float(made.loss_sum(model, batch)) == pytest.approx(float((answers - truth)[counts].square().sum()))
    found, truth, guess = made.evaluation_metrics(sums.tolist()), labels[counted].numpy(), predicted[counted].numpy()
    assert found["eval_loss"] == pytest.approx(mean_squared_error(truth, guess))
    assert found["eval_mae"] == pytest.approx(mean_absolute_error(truth, guess))
    assert found["eval_r2"] == pytest.approx(r2_score(truth, guess))
    assert made.evaluation_metrics([4.0, 8.0, 16.0, 1.0, 2.0])["eval_r2"] == 0, "all labels are one number"


@pytest.mark.parametrize(
    ("label", "says"), [("good", "not a finite number"), (True, "the label is True"), (math.nan, "the label is nan")]
)
def test_a_label_that_is_no_number_is_named(label: object, says: str, tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1.5}, {"text": "b", "label": label}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = load(tmp_path, "text_regression", data__train=str(tmp_path / "rows.jsonl"))
    with pytest.raises(SystemExit, match=rf"rows\.jsonl: sample 2: .*{says}"):
        made.load_train_data(made.TaskConfig())
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[1]) + "\n")
    plan = plans.with_changes(BASE, {"task": "text_regression", "data.train": "rows.jsonl"})
    found = project(plan, str(tmp_path)).train
    assert found
    assert 'rows.jsonl: line 1: "label" is not a number' in found.detail


# docs/decisions/tasks.md: Texts are grouped by length within a real batch only
def test_texts_of_like_length_meet_and_nothing_else_changes(tmp_path: Path) -> None:
    """Grouping happens inside a real batch: the same texts, whatever the split, with less padding."""
    train = load(tmp_path, "text_classification", "train")
    data = train.task.load_train_data(train.Config())

    def batches(ranks: int, micro: int, sizes: torch.Tensor) -> list[list[list[int]]]:
        """Per update, the micro-batches of all ranks."""
        steps = 32 // ranks // micro
        config = train.Config(per_device_batch_size=micro, gradient_accumulation_steps=steps, num_processes=ranks)
        parts = []
        for rank in range(ranks):
            order = train.RealBatches(config, len(data), rank, 0, 46)
            order.sizes = sizes
            parts.append(list(order))
        return [[m for p in parts for m in p[u * steps : (u + 1) * steps]] for u in range(46)]

    def padding(grouped: list[list[list[int]]]) -> float:
        """The part of all places that holds no token."""
        micro = [[int(data.sizes[i]) for i in m if i >= 0] for update in grouped for m in update]
        places = sum(max(sizes) * len(sizes) for sizes in micro if sizes)
        return 1 - sum(map(sum, micro)) / places

    random, grouped = batches(1, 8, torch.ones_like(data.sizes)), batches(1, 8, data.sizes)
    assert padding(grouped) < 0.6 * padding(random)
    contents = [sorted(i for m in update for i in m) for update in random]
    assert sorted(i for content in contents[:23] for i in content if i >= 0) == list(range(len(data)))
    assert contents[:23] != contents[23:]
    for ranks, micro in ((1, 8), (2, 8), (4, 2), (1, 32)):
        split = batches(ranks, micro, data.sizes)
        assert [sorted(i for m in update for i in m) for update in split] == contents


def evaluations(folder: Path) -> list[dict[str, float]]:
    """The records of a run's evaluations."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "eval_loss" in record]


def killed(folder: Path, output: Path, overrides: dict[str, object], updates: int) -> None:
    """Start two ranks, and kill them both at once after so many updates."""
    arguments = [part for name, value in overrides.items() for part in (f"--{name}", str(value))]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(claimed.port())
    command = [warm.python(), "train.py", "--output_dir", str(output), *arguments]
    ranks = []
    for rank in ("0", "1"):
        environment = projects.environment({**shared, "RANK": rank, "LOCAL_RANK": rank})
        ranks.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    end = time.monotonic() + 90 * patience()
    while not (output / "metrics.jsonl").exists() or (output / "metrics.jsonl").read_text().count('"loss"') < updates:
        assert time.monotonic() < end
        time.sleep(0.02)
    for rank_process in ranks:
        os.killpg(rank_process.pid, signal.SIGKILL)  # its data workers as well
        rank_process.wait()


@pytest.mark.train
def test_pictures_are_learned_and_a_killed_run_ends_bit_for_bit_where_it_would_have(tmp_path: Path) -> None:
    """With augmentation, two data workers, an evaluation set that does not fill its last batch, and two ranks."""
    from sklearn.metrics import accuracy_score, f1_score

    values = {**IMAGES, "batch.real_batch_size": 32, "batch.per_device_batch_size": 8, "schedule.n_steps": 50}
    folder = make(tmp_path / "project", {**values, "checkpoint.checkpointing_steps": 20, "data.num_workers": 2})
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert spawn(folder, 2, whole, {}) == 0
    killed(folder, again, {}, 25)
    assert spawn(folder, 2, again, {"resume": "auto"}) == 0
    files = [output / "model" / "model.safetensors" for output in (whole, again)]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1
    curves = [[json.loads(line) for line in (o / "metrics.jsonl").read_text().splitlines()] for o in (whole, again)]
    for mine, theirs in zip(*curves, strict=True):
        assert {**mine, **dict.fromkeys(CLOCKED)} == {**theirs, **dict.fromkeys(CLOCKED)}

    made = load(tmp_path / "code", "image_classification")
    model = made.build_model(made.TaskConfig())
    model.load_state_dict(load_file(files[0]))
    samples = list(made.load_eval_data(made.TaskConfig()))
    truth = [label for _, label in samples]
    with torch.no_grad():
        guess = model(torch.stack([picture for picture, _ in samples])).argmax(1).tolist()
    last = evaluations(whole)[-1]
    assert last["eval_accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert last["eval_f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    assert last["eval_f1"] > 0.7
    assert len(list((whole / "pictures").glob("*-seen-as-*.png"))) == 16


@pytest.mark.train
@pytest.mark.parametrize(
    "values",
    [IMAGES, TEXTS, SCORES, AGES, TAGS, TOPICS],
    ids=["pictures", "texts", "scores", "scored pictures", "tags", "topics"],
)
def test_the_split_changes_nothing(values: dict[str, object], tmp_path: Path) -> None:
    folder = make(tmp_path / "project", values)
    curves = []
    for ranks, micro in ((1, 16), (2, 4)):
        output = tmp_path / str(ranks)
        split = {
            "num_processes": ranks,
            "per_device_batch_size": micro,
            "gradient_accumulation_steps": 16 // ranks // micro,
        }
        # Pictures once as users start them; the other tasks import what these do, or what chats and documents do.
        start = test_training.spawn if ranks == 1 and values is IMAGES else spawn
        assert start(folder, ranks, output, split) == 0
        curves.append([json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()])
    for one, two in zip(*curves, strict=True):
        for field in one.keys() - CLOCKED - {"update"}:
            assert two[field] == pytest.approx(one[field], rel=1e-4), (field, one["update"])


@pytest.mark.train
@pytest.mark.parametrize(
    ("values", "name"), [(IMAGES, "zero2"), (IMAGES, "fsdp"), (TEXTS, "zero3")], ids=["zero2", "fsdp", "zero3"]
)
def test_sharded_strategies_train_in_bf16(values: dict[str, object], name: str, tmp_path: Path) -> None:
    folder = make(
        tmp_path / "project",
        {**values, **STRATEGIES[name], "precision.mixed_precision": "bf16", "schedule.n_steps": 15},
    )
    done = warm.launch(folder, env=ON_STANDIN if name == "fsdp" else None)
    assert done.code == 0, done.err
    curve = metrics(folder)
    assert sum(r["loss"] for r in curve[-5:]) < sum(r["loss"] for r in curve[:5])
    assert "seen as" in done.out or "pictures with" in done.out


def small_decoder(folder: Path) -> Path:
    """A GPT-2 of random weights with a tokenizer that has no padding, as a folder that a person might name."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["<|endoftext|>", "good", "bad", "very", "film", "the"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=words[0], unk_token=words[0]).save_pretrained(folder)
    config = GPT2Config(vocab_size=6, n_positions=256, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.train
def test_a_pretrained_decoder_learns_to_classify_rows_of_a_file(tmp_path: Path) -> None:
    """The text's last token decides, so the padding must not: texts of one to four words."""
    model, rows = small_decoder(tmp_path / "decoder"), []
    for i in range(64):
        word = ("bad", "good")[i % 2]
        rows.append({"text": " ".join(["the"] * (i % 3) + [word]), "label": word})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {**TEXTS, "machine.num_processes": 1, "strategy.kind": "single", "model.name": str(model)}
    values |= {"data.train": str(tmp_path / "rows.jsonl"), "data.eval": str(tmp_path / "rows.jsonl")}
    values |= {"optimizer.learning_rate": 1e-2, "batch.sequence_length": 16, "schedule.n_steps": 20}
    folder = make(tmp_path / "project", values)
    done = warm.launch(folder)
    assert done.code == 0, done.err
    assert evaluations(folder / "runs" / "latest")[-1]["eval_accuracy"] == 1.0
    assert "bad, seen as bad: " in done.out


@pytest.mark.train
def test_numbers_of_texts_are_learned(tmp_path: Path) -> None:
    """The share of symbols in a paragraph, from hashes of its words and symbols."""
    values = {**SCORES, "batch.real_batch_size": 32, "batch.per_device_batch_size": 16, "schedule.n_steps": 60}
    folder = make(tmp_path / "project", values)
    done = warm.launch(folder)
    assert done.code == 0, done.err
    last = evaluations(folder / "runs" / "latest")[-1]
    assert last["eval_r2"] > 0.3
    assert ", predicted " in done.out
