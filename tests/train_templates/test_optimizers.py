"""The optimizers of optimizers.py: groups of parameters, their updates, and what a resume makes of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import projects
import pytest
import torch
import warm
from accelerate.optimizer import AcceleratedOptimizer
from projects import REGRESSION, make
from safetensors.torch import load_file
from test_evaluation import untimed, weights
from test_resume import exported_is_final, go_back
from test_tasks import load
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from torch import nn
from warm import spawn

BASE: dict[str, object] = {
    **REGRESSION,
    "data.eval": "",
    "schedule.n_steps": 6,
    "checkpoint.checkpointing_steps": 1,
    "checkpoint.checkpoints_total_limit": "",
}
OWN: dict[str, dict[str, object]] = {
    "adamw": {"optimizer.beta2": 0.999, "optimizer.rates": "head=10,embed=0.1", "optimizer.decays": "bias=0.3"},
    "sgd": {"optimizer.beta1": 0.5, "optimizer.learning_rate": 0.01},
    "lion": {},
    "muon": {"optimizer.rates": "blocks=2"},
    "adafactor": {},
}


def project(folder: Path, name: str, **values: object) -> Path:
    return make(folder, {**BASE, "optimizer.name": name, **OWN[name], **values})


@pytest.mark.parametrize("fused", [True, False])
def test_an_update_that_fp16_skips_has_a_norm_that_is_not_finite(fused: bool) -> None:
    """A fused optimizer is called anyway, and leaves the weights alone by itself: accelerate takes that for a step.

    So train.py counts norms; the scaler runs on GPUs, and here on a CPU.
    """
    accelerate.Accelerator(cpu=True)
    weights = nn.Parameter(torch.ones(4))
    plain = torch.optim.AdamW([weights], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = AcceleratedOptimizer(plain, device_placement=False, scaler=scaler)
    skipped: Any = 0
    for factor, moves in ((1e38, False), (1e-3, True), (1e38, False)):
        before = weights.detach().clone()
        scaler.scale(weights.sum() * factor).backward()
        scaler.unscale_(plain)
        skipped += ~torch.isfinite(nn.utils.clip_grad_norm_([weights], 1.0))
        optimizer.step()
        optimizer.zero_grad()
        assert bool((weights != before).any()) == moves
        assert optimizer.step_was_skipped == (not fused and not moves)
    assert int(skipped) == 2


@pytest.mark.train
@pytest.mark.parametrize("name", OWN)
def test_a_resumed_training_ends_bit_for_bit_where_it_would_have(name: str, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", name, **SINGLE)
    assert spawn(folder, 1, tmp_path / "whole", {}) == 0
    go_back(tmp_path / "whole", 3, tmp_path / "resumed")
    assert spawn(folder, 1, tmp_path / "resumed", {"resume": "auto"}) == 0
    assert untimed(tmp_path / "resumed") == untimed(tmp_path / "whole")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    losses = [record["loss"] for record in untimed(tmp_path / "whole")]
    assert len(set(losses)) == 6


@pytest.mark.train
@pytest.mark.parametrize(
    ("name", "kind"), [("muon", "ddp"), ("adafactor", "ddp"), ("lion", "fsdp"), ("adamw", "fsdp"), ("lion", "zero2")]
)
def test_two_ranks_follow_the_curve_of_one(name: str, kind: str, tmp_path: Path) -> None:
    one, two = project(tmp_path / "one", name, **SINGLE), project(tmp_path / "two", name, **STRATEGIES[kind])
    assert spawn(one, 1, tmp_path / "1", {"checkpointing_steps": 0}) == 0
    env = ON_STANDIN if kind == "fsdp" else None
    assert spawn(two, 2, tmp_path / "2", {"checkpointing_steps": 0}, env) == 0
    exact = {"muon": 1e-3}.get(name, 1e-4)  # Muon orthogonalizes in bf16
    for mine, theirs in zip(untimed(tmp_path / "2"), untimed(tmp_path / "1"), strict=True):
        for field in ("loss", "weight_norm", "lr"):
            assert mine[field] == pytest.approx(theirs[field], rel=exact), (field, mine["update"])


@pytest.mark.train
def test_weights_in_bf16_have_no_masters_and_go_on_bit_for_bit(tmp_path: Path) -> None:
    values = {"precision.mixed_precision": "bf16", "precision.weights": "bfloat16"}
    folder = make(tmp_path / "project", {**BASE, **values})
    assert spawn(folder, 2, tmp_path / "whole", {}) == 0
    go_back(tmp_path / "whole", 3, tmp_path / "resumed")
    assert spawn(folder, 2, tmp_path / "resumed", {"resume": "auto"}) == 0
    assert untimed(tmp_path / "resumed") == untimed(tmp_path / "whole")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoints" / "checkpoint-00000006"
    assert {value.dtype for value in load_file(checkpoint / "model.safetensors").values()} == {torch.bfloat16}
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["optimizer"]["state"]
    assert {each["exp_avg"].dtype for each in state.values()} == {torch.bfloat16}
    cut = {"num_processes": 1, "gradient_accumulation_steps": 4, "checkpointing_steps": 0}
    assert spawn(folder, 1, tmp_path / "alone", cut) == 0
    for mine, theirs in zip(untimed(tmp_path / "alone"), untimed(tmp_path / "whole"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=2e-2), mine["update"]


AVERAGED: dict[str, object] = {
    **BASE,
    "data.eval": "embedded",
    "optimizer.ema_decay": 0.8,
    "evaluation.evaluation_steps": 2,
}


# docs/decisions/loop.md: The average of the weights is state of the optimizer
@pytest.mark.train
def test_the_average_is_evaluated_and_becomes_the_model(tmp_path: Path) -> None:
    """On one rank, resumed, and on two shards, which save nothing between an evaluation and the next update."""
    one = make(tmp_path / "one", {**AVERAGED, **SINGLE})
    two = make(tmp_path / "two", {**AVERAGED, **STRATEGIES["fsdp"]})
    assert spawn(one, 1, tmp_path / "1", {}) == 0
    saved = [tmp_path / "1" / "checkpoints" / f"checkpoint-0000000{n}" / "model.safetensors" for n in range(1, 7)]
    average = load_file(saved[0])
    for each in map(load_file, saved[1:]):
        average = {name: torch.lerp(value, each[name], 0.2) for name, value in average.items()}
    model = load_file(tmp_path / "1" / "model" / "model.safetensors")
    torch.testing.assert_close(model, average)
    go_back(tmp_path / "1", 3, tmp_path / "resumed")
    lines = (tmp_path / "1" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "resumed" / "metrics.jsonl").write_text("".join(lines[:5]))
    assert spawn(one, 1, tmp_path / "resumed", {"resume": "auto"}) == 0
    assert untimed(tmp_path / "resumed") == untimed(tmp_path / "1")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "1")
    assert spawn(two, 2, tmp_path / "2", {"checkpointing_steps": 0}, ON_STANDIN) == 0
    shards = load_file(tmp_path / "2" / "model" / "model.safetensors")
    torch.testing.assert_close(shards, model, rtol=1e-4, atol=1e-6)
    evaluated = [[r["eval_loss"] for r in untimed(tmp_path / name) if "eval_loss" in r] for name in ("1", "2")]
    assert evaluated[1] == pytest.approx(evaluated[0], rel=1e-5)
    assert len(evaluated[0]) == 3
    exported(one, tmp_path / "1")
    exported(two, tmp_path / "2")


def exported(folder: Path, output: Path) -> None:
    """`trainwiz export` writes the average, as the training did at its end; or the last weights, if told."""
    exported_is_final(folder, output)
    last = output / "last"
    done = projects.trainwiz("export", str(folder), "--last-weights", "--output", str(last), *warm.option())
    assert done.code == 0, done.err
    assert "averages" not in done.err
    written = load_file(last / "model.safetensors")
    assert not all(torch.equal(v, written[n]) for n, v in load_file(output / "model" / "model.safetensors").items())
    if (saved := output / "checkpoints" / "checkpoint-00000006" / "model.safetensors").exists():
        torch.testing.assert_close(written, load_file(saved), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_usual_settings_are_those_of_train_py(name: str, tmp_path: Path) -> None:
    inline = load(tmp_path / "a", "custom", "train", optimizer__name=name)
    own = load(tmp_path / "b", "custom", "train", optimizer__name=name, optimizer__beta1=0.9)
    made = []
    for train in (inline, own):
        torch.manual_seed(0)
        config = train.Config()
        model = train.task.build_model(config)
        optimizer = train.build_optimizer(config, model, torch.device("cpu"))
        for _ in range(3):
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            model(torch.ones(4, config.n_features)).sum().backward()
            optimizer.step()
        made.append(list(model.parameters()))
    for one, other in zip(*made, strict=True):
        assert torch.equal(one, other)


def test_lion_is_the_algorithm_of_its_paper(tmp_path: Path) -> None:
    module = load(tmp_path, "custom", "optimizers", optimizer__name="lion")
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    optimizer = module.Lion([{"params": [weight], "weight_decay": 0.1}], (0.9, 0.99))
    expected, mean = weight.detach().clone(), torch.zeros(3, dtype=torch.float64)
    for step in range(5):
        gradient = torch.tensor([0.3, -0.1, 0.2], dtype=torch.float64) * (-1) ** step + 0.05
        update = torch.sign(0.9 * mean + 0.1 * gradient)
        expected = expected - 0.01 * (update + 0.1 * expected)
        mean = 0.99 * mean + 0.01 * gradient
        weight.grad = gradient
        optimizer.param_groups[0]["lr"] = 0.01
        optimizer.step()
        assert torch.allclose(weight.detach(), expected, rtol=0, atol=1e-15)


class Model(nn.Module):
    """A language model's parts, with the head tied to the embeddings."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight


SETTINGS: dict[str, Any] = {"weight_decay": 0.1, "rates": "", "decays": ""}


@pytest.mark.parametrize("tied", [False, True])
def test_groups_of_parameters(tied: bool, tmp_path: Path) -> None:
    module = load(tmp_path, "custom", "optimizers", optimizer__name="muon")
    config = SimpleNamespace(**{**SETTINGS, "rates": "embed=0.1,layers.*.weight=2", "decays": "layers.1=0.5,bias=0.2"})
    model = Model(tied=tied)
    model.norm.bias.requires_grad_(False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {
        names[id(parameter)]: (group["factor"], group["weight_decay"], group["muon"])
        for group in module.parameter_groups(config, model)
        for parameter in group["params"]
    }
    assert found == {
        "embed.weight": (0.1, 0.1, False),
        "layers.0.weight": (2.0, 0.1, True),
        "layers.0.bias": (1.0, 0.2, False),
        "layers.1.weight": (2.0, 0.5, True),
        "layers.1.bias": (1.0, 0.2, False),
        "norm.weight": (1.0, 0.0, False),
        **({} if tied else {"head.weight": (1.0, 0.1, False)}),
    }


def test_a_name_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    module = load(tmp_path, "custom", "optimizers", optimizer__name="lion")
    config = SimpleNamespace(**{**SETTINGS, "decays": "layers=0.5,lm_head=0"})
    with pytest.raises(SystemExit, match=r"decays: lm_head matches no trained parameter; some of them are embed"):
        module.parameter_groups(config, Model(tied=False))
