"""Pictures: tables, numbers, several labels, sizes, augmentation, and networks of timm where timm is installed."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from plans import BASE
from sklearn.metrics import f1_score, roc_auc_score
from test_tasks import _forget_modules, draw, load  # noqa: F401

from trainwiz import plan as plans
from trainwiz.decide import decide
from trainwiz.probe.project import project
from trainwiz.project import DataFacts

pytestmark = pytest.mark.filterwarnings("default")


def table(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    """A table of pictures, which lie in a folder beside it."""
    draw(folder, {"photos": len(rows)})
    file = folder / name
    if file.suffix == ".csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def named(labels: list[Any], column: str = "label") -> list[dict[str, Any]]:
    return [{"image": f"photos/{i}.png", column: label} for i, label in enumerate(labels)]


def facts(task: str, where: str, **changes: Any) -> str:
    """What is said of the data before the training."""
    values = {"task": task, "data.train": where, **{key.replace("__", "."): value for key, value in changes.items()}}
    found = project(plans.with_changes(BASE, values), str(Path(where).parent)).train
    assert found
    return found.detail


@pytest.mark.parametrize(
    ("task", "file", "labels", "learned", "names"),
    [
        ("image_classification", "a.csv", ["cat", "dog", "cat"], [0, 1, 0], ["cat", "dog"]),
        ("image_classification", "a.csv", ["10", "9", "10"], [1, 0, 1], ["9", "10"]),
        ("image_classification", "a.jsonl", [3.0, 1, 3], [1, 0, 1], ["1", "3"]),
        ("image_regression", "a.csv", ["1.5", "-2", "3"], [1.5, -2.0, 3.0], None),
        ("image_regression", "a.jsonl", [1, 2.5, 3], [1.0, 2.5, 3.0], None),
        ("image_multilabel", "a.csv", ["cat|dog", "", "cow"], [[1, 0, 1], [0, 0, 0], [0, 1, 0]], ["cat", "cow", "dog"]),
        ("image_multilabel", "a.csv", ["cat, dog", "cow", "cow"], [[1, 0, 1], [0, 1, 0], [0, 1, 0]], None),
        ("image_multilabel", "a.jsonl", [["b", "a"], [], ["a"]], [[1, 1], [0, 0], [1, 0]], ["a", "b"]),
        ("image_multilabel", "a.jsonl", [[10], [9, 10], []], [[0, 1], [1, 1], [0, 0]], ["9", "10"]),
        ("image_multilabel", "a.jsonl", [[1, 0, 0], [1, 1, 0], [0, 0, 0]], [[1, 0, 0], [1, 1, 0], [0, 0, 0]], None),
        ("image_multilabel", "a.jsonl", [[True, False], [False, True], [True, False]], [[1, 0], [0, 1], [1, 0]], None),
        ("image_multilabel", "a.jsonl", [[0, 1], [1, 0], [0, 1]], [[1, 1], [1, 1], [1, 1]], "alike"),
    ],
)
def test_a_table_names_pictures_and_their_labels(
    task: str, file: str, labels: list[Any], learned: list[Any], names: Any, tmp_path: Path
) -> None:
    where = table(tmp_path, file, named(labels))
    made = load(tmp_path / "code", task, data__train=where)
    config = made.TaskConfig(image_size=16)
    if names == "alike":  # lists of classes, not flags: no number is repeated in any of them
        with pytest.raises(SystemExit, match="all 3 are alike"):
            made.load_train_data(config)
        return
    data = made.load_train_data(config)
    assert list(data.labels) == learned
    assert data[0][0].shape == (3, 16, 16)
    if names:
        assert (made.classes_of(config).names if task == "image_multilabel" else made.class_names(config)) == names
    assert facts(task, where) == ""


# docs/decisions/tasks.md: Lists that repeat a number are flags
def test_columns_of_flags_are_labels_of_their_names(tmp_path: Path) -> None:
    flags = [{"image": f"photos/{i}.png", "sunny": i % 2, "old": int(i > 1)} for i in range(4)]
    where = table(tmp_path, "a.csv", flags)
    made = load(tmp_path / "code", "image_multilabel", data__train=where, data__label_column="sunny,old")
    config = made.TaskConfig()
    assert made.classes_of(config).names == ["sunny", "old"]
    assert made.load_train_data(config).labels == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert facts("image_multilabel", where, data__label_column="sunny,old") == ""
    made.pictures.read_one.cache_clear()
    where = table(tmp_path, "a.csv", [{**row, "old": i} for i, row in enumerate(flags)])
    with pytest.raises(SystemExit, match=r"cannot be flags of 2 classes: \['0', '2'\]"):
        made.load_train_data(config)
    assert 'no label in the column "new"' in facts("image_multilabel", where, data__label_column="sunny,new")


def test_a_folder_with_metadata_is_its_table(tmp_path: Path) -> None:
    for part, count in (("train", 4), ("val", 2)):
        table(tmp_path / "pets" / part, "metadata.csv", named([str(i) for i in range(count)]))
    where = str(tmp_path / "pets")
    made = load(tmp_path / "code", "image_regression", data__train=where, data__eval=where)
    config = made.TaskConfig()
    assert made.load_train_data(config).labels == [0.0, 1.0, 2.0, 3.0]
    assert made.load_eval_data(config).labels == [0.0, 1.0]


@pytest.mark.parametrize(
    ("task", "labels", "before", "says"),
    [
        ("image_classification", [[1, 2], [3]], "use image_multilabel", "each image has one class here"),
        ("image_classification", [0.5, 1.5], "use image_regression", "a fraction"),
        ("image_classification", ["a", " "], "a label is empty", "which is empty; each image needs a label"),
        ("image_classification", ["a", "a"], "nothing to learn", "all 2 are 'a'"),
        ("image_regression", ["a", "b"], "use image_classification", "cannot be numbers: image 1 of 2 has 'a'"),
        ("image_regression", [1.0, True], "a label is not a number: True", "image 2 of 2 has True"),
        ("image_regression", [2, 2], "nothing to learn", "all 2 are 2"),
        ("image_multilabel", [{"a": 1}, ["b"]], "a label is not a list of classes", "cannot be lists of classes"),
        ("image_multilabel", [["b"], ["b"]], "nothing to learn", "all 2 are alike"),
        ("image_multilabel", [[], []], "nothing to learn", "all 2 are empty"),
        ("image_multilabel", [1.5, 2.5], "a label is not a list of classes", "cannot be lists of classes: 1.5"),
    ],
)
def test_labels_of_another_task_are_refused_before_and_by_the_task(
    task: str, labels: list[Any], before: str, says: str, tmp_path: Path
) -> None:
    where = table(tmp_path, "a.jsonl", named(labels))
    assert before in facts(task, where)
    made = load(tmp_path / "code", task, data__train=where)
    with pytest.raises(SystemExit, match=says):
        made.load_train_data(made.TaskConfig())


def test_a_file_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    where = table(tmp_path, "a.csv", named(["cat", "dog"]))
    (tmp_path / "photos" / "1.png").unlink()
    assert 'line 3: no file photos/1.png: paths in column "image"' in facts("image_classification", where)
    made = load(tmp_path / "code", "image_classification", data__train=where)
    with pytest.raises(SystemExit, match=r'a\.csv:3: no such file or folder: column "image" is .photos/1\.png'):
        made.load_train_data(made.TaskConfig())
    assert 'no column "file"' in facts("image_classification", where, data__image_column="file")


def test_folders_are_no_numbers(tmp_path: Path) -> None:
    where = str(draw(tmp_path / "pets", {"cat": 2, "dog": 2}))
    assert "this task needs a table" in facts("image_regression", where)
    made = load(tmp_path / "code", "image_regression", data__train=where)
    with pytest.raises(SystemExit, match="image 1 of 4 has 'cat'; classes are learned by the task image_class"):
        made.load_train_data(made.TaskConfig())


def test_pictures_are_found_at_any_depth_and_none_is_left_out(tmp_path: Path) -> None:
    where = draw(tmp_path / "pets", {"cat": 2, "dog": 2})
    draw(where / "dog", {"old/2009": 3})
    draw(tmp_path, {"elsewhere": 1})
    (where / "fox").symlink_to(tmp_path / "elsewhere")
    (where / "cat" / "all").symlink_to(where)
    (where / "cat" / ".ipynb_checkpoints").mkdir()
    (where / "cat" / ".ipynb_checkpoints" / "0-checkpoint.png").write_bytes((where / "cat" / "0.png").read_bytes())
    for clutter in ("__MACOSX/cat/._0.png", "cat/.DS_Store", "cat/._0.heic", "notes.txt"):
        (where / clutter).parent.mkdir(parents=True, exist_ok=True)
        (where / clutter).write_text("")
    made = load(tmp_path / "code", "image_classification", data__train=str(where))
    names, pictures = made.pictures.part, made.pictures
    _, labels = pictures.in_folders(names(str(where), "train"))
    assert labels == ["cat"] * 2 + ["dog"] * 5 + ["fox"]
    assert facts("image_classification", str(where)) == ""
    for wrong in ("dog/old/IMG_1.HEIC", "loose.jpg"):
        (where / wrong).write_text("")
        with pytest.raises(SystemExit, match=f"would be left out: 1, the first: .*{wrong}"):
            pictures.in_folders(where)
        assert f"would be ignored: 1, the first: {wrong}" in facts("image_classification", str(where))
        (where / wrong).unlink()


@pytest.mark.parametrize(
    ("train", "held_out", "besides"),
    [
        ("train", "val", ".ipynb_checkpoints"),
        ("Training", "Test", "__MACOSX"),
        ("training_set", "test_set", "annotations"),
        ("seg_train", "seg_test", ""),
        ("train2017", "val2017", ""),
    ],
)
def test_folders_named_by_their_part_are_no_classes(train: str, held_out: str, besides: str, tmp_path: Path) -> None:
    """Beside them may lie what holds no pictures; where other folders do, nobody knows what they are for."""
    where = draw(tmp_path / "pets", {f"{train}/cat": 2, f"{train}/dog": 1, f"{held_out}/cat": 1, f"{held_out}/dog": 3})
    if besides:
        (where / besides).mkdir()
        (where / besides / "x.json").write_text("{}")
    changes = {"data.train": str(where), "data.eval": str(where)}
    made = load(tmp_path / "code", "image_classification", **{k.replace(".", "__"): v for k, v in changes.items()})
    config = made.TaskConfig()
    assert made.class_names(config) == ["cat", "dog"]
    assert [len(made.load_train_data(config)), len(made.load_eval_data(config))] == [3, 4]
    plan = plans.with_changes(BASE, {"task": "image_classification", **changes})
    found = project(plan, str(tmp_path))
    assert found.train
    assert found.eval
    assert (found.train.samples, found.eval.samples, found.train.evaluation_part) == (3, 4, held_out)
    for other in ("unlabeled", f"{train}_2"):
        draw(where, {other: 1})
        made.pictures.read_one.cache_clear()
        with pytest.raises(SystemExit, match="is not clear"):
            made.load_train_data(config)
        assert "it is not clear which of its folders" in facts("image_classification", str(where))
        shutil.rmtree(where / other)


def test_folders_without_one_for_evaluation_are_classes(tmp_path: Path) -> None:
    where = draw(tmp_path / "vehicles", {"train": 2, "tram": 2})
    made = load(tmp_path / "code", "image_classification", data__train=str(where))
    assert made.class_names(made.TaskConfig()) == ["train", "tram"]
    assert facts("image_classification", str(where)) == ""


def test_shown_pictures_have_names_that_file_systems_take(tmp_path: Path) -> None:
    where = str(draw(tmp_path / "pets", {"cat": 2, "dog": 2}))
    made = load(tmp_path / "code", "image_classification", data__train=where, data__image_size=8)
    data, folder = made.load_train_data(made.TaskConfig()), tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    made.pictures.show(data, lambda batch: batch, folder, 4, lambda _: "类" * 200)  # 600 bytes each
    assert len(list((tmp_path / "run" / "pictures").iterdir())) == 4


def test_pictures_stand_upright_and_wide_greys_keep_their_range(tmp_path: Path) -> None:
    made = load(tmp_path / "code", "image_classification", data__image_size=4)
    config = dataclasses.replace(made.TaskConfig(), image_size=2)
    data = made.pictures.Pictures(config, [], [], training=False)

    def pixels(name: str, array: Any, **saved: Any) -> list[list[int]]:
        Image.fromarray(np.array(array)).save(tmp_path / name, **saved)
        return data.read(tmp_path / name)[..., 0].tolist()  # type: ignore[no-any-return]

    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright: shown turned by 90 degrees, clockwise
    assert pixels("a.png", np.uint8([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert pixels("b.png", np.uint8([[1, 2], [3, 4]]), exif=turned) == [[3, 1], [4, 2]]
    for name in ("c.png", "c.tif"):
        assert pixels(name, np.uint16([[0, 256], [65535, 0x8000]])) == [[0, 1], [255, 128]]
    assert pixels("d.png", np.uint16([[0, 256], [512, 768]]), exif=turned) == [[2, 0], [3, 1]]
    for wide in (np.float32, np.int32):
        with pytest.raises(SystemExit, match=r"e.tif: pixels of 32 bits"):
            pixels("e.tif", wide([[0, 1], [2, 3]]))


def test_a_part_of_the_pictures_is_kept_for_evaluation_only(tmp_path: Path) -> None:
    where = str(draw(tmp_path / "pets", {"cat": 12, "dog": 8}))
    for task_data in (where, "embedded"):
        made = load(tmp_path / "code", "image_classification", data__train=task_data, data__eval="20%")
        config = made.TaskConfig()
        train, held = made.load_train_data(config), made.load_eval_data(config)
        whole = 20 if task_data == where else 1438
        assert len(train) + len(held) == whole
        assert len(held) == round(whole / 5)
        if task_data == where:
            assert not {*train.pictures} & {*held.pictures}
    values = {"task": "image_classification", "data.train": where, "data.eval": "20%"}
    found = project(plans.with_changes(BASE, values), str(tmp_path))
    assert found.eval
    assert found.train
    assert (found.eval.kind, found.eval.detail, found.train.samples) == ("part", "", None)


@pytest.mark.parametrize("how", ["none", "shift", "flip", "crop", "color"])
def test_each_augmentation_is_a_function_of_its_generator(how: str, tmp_path: Path) -> None:
    where = str(draw(tmp_path / "pets", {"cat": 2, "dog": 2}, (90, 60)))
    values = {"data__train": where, "data__eval": where, "data__augmentation": how, "data__image_size": 32}
    made = load(tmp_path / "code", "image_classification", **values)
    data = made.load_train_data(made.TaskConfig())
    assert hasattr(data, "augment") is (how != "none")
    held = made.pictures.load(made.TaskConfig(), "validation", lambda _, labels, __: labels)
    assert held[0][0].shape == (3, 32, 32)
    if how == "none":
        assert torch.equal(data[0][0], data[0][0])
        return
    seen = [data.augment(data[0], torch.Generator().manual_seed(seed))[0] for seed in (1, 1, *range(2, 12))]
    assert torch.equal(seen[0], seen[1])
    assert len({view.numpy().tobytes() for view in seen}) > 5
    assert {(view.shape, view.dtype) for view in seen} == {((3, 32, 32), torch.uint8)}
    assert torch.equal(held.augment(held[0], torch.Generator())[0], held[0][0]), "evaluation pictures stay"
    means = [float(view.float().mean()) for view in seen]
    assert (max(means) > 135) is (how == "color")


def test_a_crop_is_a_part_of_the_picture_as_large_as_it_says(tmp_path: Path) -> None:
    made = load(tmp_path, "image_classification", data__augmentation="crop")
    ramp = torch.arange(64.0)[None, None].expand(3, 64, 64) * 4  # the column says where a pixel is
    for seed in range(50):
        part = made.pictures.cropped(ramp.byte(), 64, torch.Generator().manual_seed(seed))[0, 0].float() / 4
        wide = float(part[-1] - part[0])
        assert 0.5 * 64 - 3 < wide < 64
        assert torch.all(part.diff() >= 0)


def test_metrics_of_several_labels_are_scikit_learns_without_the_padded_samples(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    logits = torch.from_numpy(random.normal(size=(3, 8, 4))).float()
    logits[..., 3] = -9  # never guessed
    labels = torch.from_numpy(random.integers(0, 2, (3, 8, 4))).float()
    labels[..., 3] = 0
    counted = torch.ones(3, 8, dtype=torch.bool)
    counted[2, 5:] = False
    truth, said = labels[counted], logits[counted]
    for gathered in (False, True):
        made = load(tmp_path / str(gathered), "image_multilabel", evaluation__gather_outputs=gathered)
        batches = []
        for part, flags, counts in zip(logits, labels, counted, strict=True):
            batch = {"pictures": torch.zeros(8), "labels": flags, "counted": counts}
            model = lambda _, given=part: given  # noqa: E731
            batches.append((model, batch))
            whole = torch.nn.functional.binary_cross_entropy_with_logits(part[counts], flags[counts])
            assert float(made.loss_sum(model, batch)) == pytest.approx(float(whole) * int(counts.sum()), rel=1e-5)
        if gathered:
            rows = [made.evaluation_outputs(model, batch)[batch["counted"]] for model, batch in batches]
            found = made.evaluation_metrics(torch.cat(rows))
            areas = [roc_auc_score(truth[:, c], said[:, c]) for c in range(3)]
            assert found.pop("eval_auc") == pytest.approx(np.mean(areas))
        else:
            sums: Any = sum(made.evaluation_sums(model, batch).double() for model, batch in batches)
            found = made.evaluation_metrics(sums.tolist())
        loss = torch.nn.functional.binary_cross_entropy_with_logits(said, truth)
        assert found == {
            "eval_loss": pytest.approx(float(loss), rel=1e-5),
            "eval_accuracy": pytest.approx(float(((said > 0) == (truth > 0)).all(1).float().mean())),
            "eval_f1": pytest.approx(f1_score(truth[:, :3], said[:, :3] > 0, average="macro")),
            "eval_f1_micro": pytest.approx(f1_score(truth, said > 0, average="micro")),
        }


def test_defaults_for_pictures_depend_on_data_and_model() -> None:
    first = {"id": 7, "file_name": "a.png", "age": 31}
    found = decide(
        {"task": "image_regression", "data.train": "faces.csv"},
        None,
        data=DataFacts(name="faces.csv", kind="file", first=first),
    ).plan
    assert (found.data.image_column, found.data.label_column, found.data.augmentation) == ("file_name", "age", "flip")
    assert found.data.image_size == 32
    found = decide({"task": "image_classification", "model.name": "timm/vit_small_patch16_224"}, None).plan
    assert (found.data.image_size, found.model.from_scratch, found.data.augmentation) == (224, False, "shift")
    assert found.optimizer.learning_rate == 1e-4


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A network of timm with random weights, as a folder that timm wrote; it has batch norm."""
    timm = pytest.importorskip("timm", reason="timm is not in the test environment")
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", pretrained=False, num_classes=7)
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
    timm.models.save_for_hf(network, str(tmp_path / "net"), safe_serialization=True)
    return tmp_path / "net"


# docs/decisions/tasks.md: Batch norm keeps the statistics that it came with
def test_a_network_of_timm_is_trained_with_the_statistics_it_came_with(published: Path, tmp_path: Path) -> None:
    import timm

    pets = str(draw(tmp_path / "pets", {"cat": 3, "dog": 3}, (40, 40)))
    values = {"data__train": pets, "model__name": str(published), "model__from_scratch": False, "data__image_size": 64}
    made = load(tmp_path / "code", "image_classification", **values)
    config = made.TaskConfig()
    model, data = made.build_model(config).train(), made.load_train_data(config)
    source = timm.create_model(f"local-dir:{published}", pretrained=True)
    assert torch.equal(model.network.conv1[0].weight, source.conv1[0].weight)
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert before
    batch, _ = made.collate([data[i] for i in range(6)], [True] * 6)
    logits = model(batch["pictures"])
    torch.testing.assert_close(model(batch["pictures"][:1]), logits[:1], rtol=1e-4, atol=1e-4)
    made.loss_sum(model, batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert set(model._no_split_modules) <= {type(part).__name__ for part in model.modules()}

    made.save_model(config, model, dict(model.state_dict()), tmp_path / "out" / "model")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out' / 'model'}", pretrained=True).eval()
    pixels = torch.stack(
        [(batch["pictures"][:, i] / 255 - m) / s for i, (m, s) in enumerate(zip(model.mean, model.std, strict=True))], 1
    )
    torch.testing.assert_close(loaded(pixels), model(batch["pictures"]), rtol=1e-4, atol=1e-4)
    assert json.loads((tmp_path / "out" / "model" / "config.json").read_text())["label_names"] == ["cat", "dog"]
    assert timm.data.resolve_data_config({}, model=loaded)["input_size"] == (3, 64, 64)
    assert made.sample(config, tmp_path / "out" / "model", 2).startswith("pictures with")
    assert len(list((tmp_path / "out" / "pictures").iterdir())) == 2


def test_a_network_of_timm_keeps_its_head_for_the_same_classes_only(published: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    known = load_file(published / "model.safetensors")["fc.weight"]
    pets = str(draw(tmp_path / "pets", {f"pet{i}": 1 for i in range(7)}, (8, 8)))
    values = {"data__train": pets, "model__name": str(published), "model__from_scratch": False}
    for names, kept in ((None, False), ([f"car{i}" for i in range(7)], False), ([f"pet{i}" for i in range(7)], True)):
        about = json.loads((published / "config.json").read_text())
        (published / "config.json").write_text(json.dumps(about | ({"label_names": names} if names else {})))
        made = load(tmp_path / f"code{names and names[0]}", "image_classification", **values)
        assert torch.equal(made.build_model(made.TaskConfig()).network.fc.weight, known) is kept


def test_networks_of_timm_that_cannot_be_trained_exactly_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="timm is not in the test environment")
    for name, says in (
        ("timm/resnet18", "batch norm have no statistics of their own"),
        ("timm/no_such_net", "cannot load"),
    ):
        made = load(tmp_path, "image_classification", model__name=name, model__from_scratch=True)
        with pytest.raises(SystemExit, match=says):
            made.build_model(made.TaskConfig())
    values = {"model__name": "timm/vit_tiny_patch16_224", "model__from_scratch": True, "data__image_size": 64}
    made = load(tmp_path, "image_classification", **values)
    model = made.build_model(made.TaskConfig())
    assert model(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape == (2, 10)
    assert model._no_split_modules == ["Block"]
