"""Linear layers in fp8: which are, with which recipe, by torchao's names alone, since it is not installed here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_rows import CUDA
from test_tasks import load
from torch import nn

FP8 = {**CUDA, "precision__mixed_precision": "fp8"}


@dataclass(frozen=True)
class Recipe:
    name: str
    pad_inner_dim: bool = False

    @classmethod
    def from_recipe_name(cls, name: str) -> Recipe:
        return cls(name)


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Recipe]]:
    """The layers that torchao was asked to convert."""
    found: list[tuple[str, Recipe]] = []

    def convert(model: nn.Module, *, config: Recipe, module_filter_fn: Any) -> None:
        linear = ((name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear))
        found.extend((name, config) for name, part in linear if module_filter_fn(part, name))

    package, part = ModuleType("torchao"), ModuleType("torchao.float8")
    part.Float8LinearConfig, part.convert_to_float8_training = Recipe, convert  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", part)
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 33), nn.Linear(32, 24), nn.Conv1d(32, 32, 1)) for _ in "ab"
        )
        self.head = nn.Linear(32, 64)


def test_trained_layers_of_fitting_widths_multiply_in_fp8_by_row(
    tmp_path: Path, converted: list[tuple[str, Recipe]], capsys: pytest.CaptureFixture[str]
) -> None:
    fp8 = load(tmp_path, "causal_lm", "fp8", **FP8)
    with torch.device("meta"):
        net = Net()
    fp8.use_fp8(net)
    assert converted == [(f"layers.{n}.0", Recipe("rowwise", pad_inner_dim=True)) for n in range(2)]
    assert "fp8: 2 of 6 linear layers multiply in fp8" in capsys.readouterr().out
    net.requires_grad_(False)
    with pytest.raises(SystemExit, match="none of the model's 6 linear layers"):
        fp8.use_fp8(net)


def test_the_engine_computes_the_rest_in_bf16_and_attends_by_documents(tmp_path: Path) -> None:
    train = load(tmp_path, "causal_lm", "train", **FP8)
    assert train.Config().mixed_precision == "bf16"
    assert "use_fp8(model)" in (tmp_path / "train.py").read_text()
    assert "by_document" in (tmp_path / "rows.py").read_text()


def test_layers_are_replaced_before_they_are_recomputed_and_compiled(tmp_path: Path) -> None:
    """A compiled layer keeps the code of the layers that it had, and so does one whose forward is recomputed."""
    options = {"model__compile": True, "model__activation_checkpointing": "full"}
    load(tmp_path, "causal_lm", "fp8", **FP8, **options)
    text = (tmp_path / "train.py").read_text()
    steps = ("    use_fp8(model)", "    recompute_layers(model", "    compile_layers(model)", "accelerator.prepare(")
    places = [text.index(step) for step in steps]
    assert places == sorted(places)
