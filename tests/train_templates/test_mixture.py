"""Several sources with weights: how often each document is seen, and that nothing else decides it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_tasks import draw, load

pytestmark = pytest.mark.filterwarnings("default")


def source(path: Path, letter: str, count: int, size: int) -> str:
    """Documents that are told apart by their letter: this many, of about this size."""
    rows = [{"text": f"{i:04}{letter * (size + i % 3)}"} for i in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def mixed(folder: Path, weights: str | None, *, by: str = "tokens", **changes: Any) -> Any:
    names = [source(folder / "a.jsonl", "a", 40, 20), source(folder / "b.jsonl", "b", 10, 60)]
    values = {
        "data__train": ", ".join(names),
        "data__source_weights": weights,
        "data__weigh_by": by,
        "data__eval": None,
    }
    return load(folder / "code", "causal_lm", **{**values, **changes})


def seen(data: Any) -> dict[str, int]:
    """How often each document is in an epoch, by its text."""
    found: dict[str, int] = {}
    for i in range(len(data)):
        ids, labels, positions = data[i]
        text = bytes(t if t < 256 else 10 for t in [*ids.tolist(), *labels[-1:].clamp(min=0).tolist()])
        for start in (positions == 0).nonzero().flatten().tolist():
            name = bytes(text[start : start + 5]).decode()
            if name[-1] in "ab":
                found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(
    ("by", "weights"), [("samples", "1,1"), ("samples", "1,3"), ("tokens", "2,1"), ("tokens", "1,4")]
)
def test_shares_are_those_of_the_weights_and_every_document_is_seen(
    by: str, weights: str, packing: bool, tmp_path: Path
) -> None:
    task = mixed(tmp_path, weights, by=by, data__packing=packing)
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"), sequence_length=128)
    found = seen(task.load_train_data(config))
    assert len(found) == 50, "every document at least once"
    sizes = {name: len(name) - 1 + (20 if name[-1] == "a" else 60) + int(name[:4]) % 3 for name in found}
    amounts = {
        letter: sum(
            times * (sizes[name] if by == "tokens" else 1) for name, times in found.items() if name[-1] == letter
        )
        for letter in "ab"
    }
    first, second = map(float, weights.split(","))
    # A document more or less: the longest has 66 tokens.
    assert amounts["a"] / first == pytest.approx(
        amounts["b"] / second, abs=(66 if by == "tokens" else 1) / min(first, second)
    )
    for letter in "ab":
        times = [count for name, count in found.items() if name[-1] == letter]
        assert max(times) - min(times) <= 1


def test_a_mixture_is_the_same_each_time_and_other_weights_make_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = mixed(tmp_path, "1,3", by="samples")
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"), sequence_length=128)
    one, two = (task.load_train_data(task.TaskConfig(**{**vars(config), "cache_dir": str(tmp_path / c)})) for c in "xy")
    assert all(torch.equal(one[i], two[i]) for i in range(len(one)))
    assert "b.jsonl: 75.0% of the samples: 10 are seen 12.00 times" in capsys.readouterr().out
    again = task.load_train_data(
        task.TaskConfig(**{**vars(config), "cache_dir": str(tmp_path / "x"), "source_weights": "1,1"})
    )
    assert len(again) != len(one)


def test_one_weight_for_all_is_no_weight(tmp_path: Path) -> None:
    """Weights in proportion to what there is give the rows of a plan without weights, up to their order."""
    plain = seen(mixed(tmp_path, None).load_train_data(mixed(tmp_path, None).TaskConfig(cache_dir=str(tmp_path / "p"))))
    task = mixed(tmp_path, "4,1", by="samples")
    assert seen(task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "w")))) == plain
    assert set(plain.values()) == {1}


def test_what_is_kept_for_evaluation_is_never_trained_on_however_often_a_source_is_seen(tmp_path: Path) -> None:
    task = mixed(tmp_path, "1,3", by="samples", data__eval="20%")
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"), sequence_length=128)
    trained, kept = seen(task.load_train_data(config)), seen(task.load_eval_data(config))
    assert not trained.keys() & kept.keys()
    assert len(trained) + len(kept) == 50
    assert set(kept.values()) == {1}


def test_conversations_are_mixed_too(tmp_path: Path) -> None:
    names = []
    for letter, count in (("a", 12), ("b", 4)):
        talks = [
            {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": letter * 5}]}
            for i in range(count)
        ]
        (path := tmp_path / f"{letter}.jsonl").write_text("\n".join(map(json.dumps, talks)))
        names.append(str(path))
    values = {
        "data__train": ", ".join(names),
        "data__source_weights": "1,1",
        "data__weigh_by": "samples",
        "data__eval": None,
    }
    task = load(tmp_path / "code", "sft", **values, data__packing=False)
    data = task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "cache")))
    letters = [chr(int(data[i][1].max() if data[i][1].max() < 256 else data[i][1][-2])) for i in range(len(data))]
    assert (letters.count("a"), letters.count("b")) == (12, 12)


def two_sources(folder: Path, rows: Any, **values: Any) -> dict[str, Any]:
    """Two files, with 12 and with 4 rows of `rows(letter, number)`."""
    names = []
    for letter, count in (("a", 12), ("b", 4)):
        (path := folder / f"{letter}.jsonl").write_text("\n".join(json.dumps(rows(letter, i)) for i in range(count)))
        names.append(str(path))
    weights = {"data__source_weights": "1,1", "data__weigh_by": "samples", "data__eval": None}
    return {"data__train": ", ".join(names), **weights, **values}


@pytest.mark.parametrize("task", ["text_classification", "text_multilabel", "text_regression"])
def test_labeled_texts_are_mixed_and_their_classes_stay(task: str, tmp_path: Path) -> None:
    label = {"text_classification": "xy", "text_multilabel": [["x"], ["y"]], "text_regression": [0.5, 2.0]}[task]
    values = two_sources(tmp_path, lambda letter, i: {"text": f"{letter} {'w ' * i}", "label": label[i % 2]})
    made = load(tmp_path / "code", task, **values)
    data = made.load_train_data(made.TaskConfig())
    first = [int(ids[1]) for ids in data.ids]
    assert sorted(map(first.count, set(first))) == [12, 12]
    assert len(data) == len(data.labels) == len(data.sizes) == 24
    assert len({tuple(ids.tolist()) for ids in data.ids}) == 16, "every text is there"
    held = load(tmp_path / "held", task, **{**values, "data__eval": "25%"})
    trained, kept = held.load_train_data(held.TaskConfig()), held.load_eval_data(held.TaskConfig())
    assert len(kept) == 4
    assert not {tuple(ids.tolist()) for ids in trained.ids} & {tuple(ids.tolist()) for ids in kept.ids}


def test_pictures_of_several_sources_are_mixed(tmp_path: Path) -> None:
    # Which two are held out depends on where they lie; they are not to be all of the second source.
    one, two = draw(tmp_path / "one", {"cat": 6, "dog": 6}), draw(tmp_path / "two", {"cat": 2, "owl": 2})
    weights = {"data__source_weights": "1,3", "data__eval": "2"}
    made = load(tmp_path / "code", "image_classification", data__train=f"{one}, {two}", **weights)
    data, kept = made.load_train_data(made.TaskConfig()), made.load_eval_data(made.TaskConfig())
    of_two = [str(file) for file in data.pictures if "two" in str(file)]
    assert data.classes == ["cat", "dog", "owl"]
    assert len(kept) == 2
    assert len(of_two) == pytest.approx(3 * (len(data) - len(of_two)), abs=1)
    assert {str(file) for file in data.pictures}.isdisjoint(map(str, kept.pictures))


@pytest.mark.parametrize(("task", "loss"), [("preference", "dpo"), ("preference", "kto"), ("reward_model", "dpo")])
def test_preferences_are_mixed_and_equal_ones_share_a_reference(task: str, loss: str, tmp_path: Path) -> None:
    def rows(letter: str, i: int) -> dict[str, str]:
        return {"prompt": f"{letter}{i}", "chosen": f" {letter * 3}", "rejected": f" {letter * 2}!"}

    values = two_sources(tmp_path, rows, preference__loss=loss)
    made = load(tmp_path / "code", task, **values)
    data = made.load_train_data(made.TaskConfig(cache_dir=str(tmp_path / "cache")))
    prompts = [bytes(255 & ~i for i in data.ids(row, side) if i < 0).decode() for row, side in data.chosen]
    sides = 2 if loss == "kto" else 1
    assert [sum(":\na" in prompt for prompt in prompts), len(prompts)] == [12 * sides, 24 * sides]
    if task == "preference":
        assert (
            sorted(map(data.equal_to.tolist().count, set(data.equal_to.tolist()))) == [1] * 12 * sides + [3] * 4 * sides
        )
        assert all(data.chosen[i] == data.chosen[first] for i, first in enumerate(data.equal_to.tolist()))
    tokens = made.load_train_data(made.TaskConfig(cache_dir=str(tmp_path / "cache"), weigh_by="tokens"))
    assert len(tokens) == 24 * sides, "as many learned tokens in each"


def test_a_source_without_documents_is_named(tmp_path: Path) -> None:
    task = mixed(tmp_path, "1,3", data__min_tokens=50)
    with pytest.raises(SystemExit, match=r"a\.jsonl: no text to train on"):
        task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "cache"), min_tokens=50))


def test_a_source_of_one_document_is_seen_whatever_its_weight_is_rounded_to(tmp_path: Path) -> None:
    """1002 / (1002 / 0.7) * 0.7 is a little less than 1002."""
    (tmp_path / "one.txt").write_text("x" * 1001)
    names = [str(tmp_path / "one.txt"), source(tmp_path / "b.jsonl", "b", 4, 20)]
    values = {"data__train": ", ".join(names), "data__source_weights": "0.7,0.3", "data__eval": None}
    task = load(tmp_path / "code", "causal_lm", **values)
    data = task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "cache"), sequence_length=2048))
    assert sum(int((data[i][0] == ord("x")).sum()) for i in range(len(data))) >= 1000


def test_prompts_that_are_not_learned_have_no_share(tmp_path: Path) -> None:
    task = load(tmp_path / "code", "sft", data__source_weights="1,1", data__train="a.jsonl, b.jsonl")
    mixture = task.rows.mixture

    class Part:
        ids = torch.tensor([~1, ~2, 3, 4, ~5, 6, 7]).numpy()

        def documents(self) -> Any:
            yield {"size": torch.tensor([4, 3]).numpy()}

    assert mixture.learned(Part(), 10).tolist() == [2, 2]
    assert mixture.learned(Part(), 2).tolist() == [1, 2], "within the length"
