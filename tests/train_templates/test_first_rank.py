"""Models that task.py builds itself, under FSDP2 and ZeRO 3: who has their weights, and whether they are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from projects import REGRESSION, losses, make
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from warm import launch, run

pytestmark = pytest.mark.train

CHILD = Path(__file__).parents[1] / "engine_children" / "first.py"
SHARDED: dict[str, dict[str, Any]] = {
    "fsdp": STRATEGIES["fsdp"],
    "zero3": {**STRATEGIES["zero3"], "strategy.zero3_init": False},
    "zero3, cut": {**STRATEGIES["zero3"], "strategy.zero3_init": True},
}
MODEL = """

class Table(nn.Module):
    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        weight = nn.Parameter(torch.empty(60000, config.n_features * 8))
        self.embed = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 1, bias=False)
        self.embed.weight = weight
        self.head.weight = weight  # shared, and each module is given it anew
        self.head.weight.mark = "tied"
        self.listed = [self.head.weight]
        nn.init.trunc_normal_(self.embed.weight, std=0.02)
        self.register_buffer("noise", torch.randn(7))  # drawn after the weights
        self.register_buffer("angles", torch.rand(5), persistent=False)
        self.net = Net(config)
        self.net.apply(lambda part: nn.init.orthogonal_(part.weight) if isinstance(part, nn.Linear) else None)
        self.norm = nn.BatchNorm1d(config.n_features)

    def forward(self, inputs: Tensor) -> Tensor:
        there = self.embed.weight[:3].mean() + self.head.weight.mean() + self.noise.mean() + self.angles.mean()
        return self.net(self.norm(inputs)) + there


def build_model(config: TaskConfig) -> nn.Module:
    model = Table(config)
    # more
    return model
"""
"""A module that shares a weight, and draws buffers after its weights: 31 MB."""


def project(folder: Path, name: str, more: str = "", **values: Any) -> Path:
    made = make(folder, {**REGRESSION, **SHARDED[name], "data.eval": "", **values})
    text = (made / "task.py").read_text() + MODEL.replace("# more", more or "pass")
    (made / "task.py").write_text(text)
    return made


def asked(folder: Path, ranks: int = 2) -> tuple[list[dict[str, Any]], str]:
    shutil.copy(CHILD, folder)
    done = run(folder, [CHILD.name, str(folder)], ranks, env=ON_STANDIN, seconds=240)
    assert [one.code for one in done] == [0] * ranks, done[-1].err[-3000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)], done[0].out


@pytest.mark.parametrize("name", SHARDED)
def test_rank_0_alone_has_the_weights_and_all_get_their_shards(name: str, tmp_path: Path) -> None:
    (first, second), said = asked(project(tmp_path / "project", name))
    assert "build_model needs" not in said
    for rank in (first, second):
        assert rank["apart"] == []
        assert {"embed.weight", "head.weight", "noise", "angles", "norm.running_mean"} <= set(rank["names"])
        assert rank["kept"] == {"shared": True, "listed": True, "marked": "tied"}
        assert rank["drawn"]
        assert rank["ties"]
    assert first["whole"] > 30e6
    assert first["held"] > 0.9 * first["whole"]
    assert second["held"] < 0.2 * first["whole"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("model.largest = float(model.embed.weight.max())", "RuntimeError"),
        ("model.register_buffer('first', model.embed.weight[0].detach().clone())", "Table.first is computed from"),
        ("model.copied = [model.head.weight.detach() * 2]", "Table.copied is computed from"),
        ("model.extra = nn.Linear(*(2, 3) if model.embed.weight.is_meta else (3, 2))", "extra.weight is otherwise"),
        ("torch.randn(1) if model.embed.weight.is_meta else None", "other random numbers"),
    ],
)
def test_a_model_that_needs_its_weights_is_built_by_all_and_said(more: str, why: str, tmp_path: Path) -> None:
    found, said = asked(project(tmp_path / "project", "fsdp", more))
    assert why in said
    assert "2 ranks build the whole model, 0.03 GiB each" in said
    for rank in found:
        assert set(rank["apart"]) <= {"extra.weight", "extra.bias"}
        assert rank["held"] > 25e6


@pytest.mark.parametrize("name", SHARDED)
def test_they_train_as_one_rank_does(name: str, tmp_path: Path) -> None:
    alone = make(tmp_path / "alone", {**REGRESSION, "data.eval": "", **SINGLE})
    assert launch(alone).code == 0
    values = {**REGRESSION, **SHARDED[name], "data.eval": ""}
    folder = make(tmp_path / "project", values)
    done = launch(folder, env=ON_STANDIN)
    assert done.code == 0, done.err
    assert losses(folder) == pytest.approx(losses(alone), rel=1e-5)


def test_a_model_that_is_cut_module_by_module_trains_alike_in_16_bits(tmp_path: Path) -> None:
    """DeepSpeed refuses weights in fp32 that it finds sharded already, and casts whole ones itself."""
    found = []
    for name in ("zero3", "zero3, cut"):
        values = {**REGRESSION, **SHARDED[name], "data.eval": "", "precision.mixed_precision": "bf16"}
        folder = make(tmp_path / name.replace(", ", "-"), {**values, "schedule.n_steps": 4})
        done = launch(folder)
        assert done.code == 0, done.err
        found.append(losses(folder))
    assert found[0] == found[1]
