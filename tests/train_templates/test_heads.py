"""A model that was trained to judge texts: its head is kept for the same classes, and new for others."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_tasks import load
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

ROWS = '{"text": "one", "label": "bad"}\n{"text": "two", "label": "good"}\n'


def judged(folder: Path, names: list[str]) -> Path:
    """A classifier of these classes, without a tokenizer."""
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**shape, intermediate_size=16, id2label=dict(enumerate(names)))
    config.label2id = {name: i for i, name in enumerate(names)}
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def head(model: Any) -> Tensor:
    (weight,) = (weight for name, weight in model.named_parameters() if name.endswith("classifier.weight"))
    return weight.detach()


@pytest.mark.parametrize(
    ("names", "said", "rows"),
    [
        (["bad", "good"], "its head is kept, since it was trained for the same classes: 2 (bad, good)", [0, 1]),
        (["GOOD", "Bad"], "its head is kept, since it was trained for the same classes: 2 (bad, good)", [1, 0]),
        (["sport", "news"], "its head was for 2 (sport, news), so a new one is trained for 2 (bad, good)", None),
        (["LABEL_0", "LABEL_1"], "its head was for 2 (LABEL_0, LABEL_1), so a new one", None),
        (["bad", "good", "so so"], "its head was for 3 (bad, good, so so), so a new one is trained for 2", None),
    ],
)
def test_a_head_stays_for_the_same_classes_only(
    names: list[str],
    said: str,
    rows: list[int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = judged(tmp_path / "before", names)
    (tmp_path / "data.jsonl").write_text(ROWS)
    values = {"model__name": str(before), "model__from_scratch": False, "data__train": str(tmp_path / "data.jsonl")}
    task = load(tmp_path / "project", "text_classification", **values)
    monkeypatch.setattr(sys.modules["texts"], "Tokens", Bare)
    old = head(BertForSequenceClassification.from_pretrained(before))
    model = task.build_model(task.TaskConfig())
    assert said in capsys.readouterr().out
    assert model.config.id2label == {0: "bad", 1: "good"}
    if rows is not None:
        assert torch.equal(head(model), old[rows])
    else:
        assert head(model).shape == (2, 16)
        assert not torch.isclose(head(model), old[:2]).any()


class Bare:
    """In the place of a tokenizer."""

    pad = 0

    def __init__(self, _config: Any) -> None: ...
