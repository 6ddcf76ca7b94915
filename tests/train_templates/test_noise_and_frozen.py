"""NEFTune's noise on the embeddings, and parameters that are not trained."""

from pathlib import Path

import pytest
import torch
from projects import REGRESSION, SMALL, make
from safetensors.torch import load_file
from test_evaluation import untimed, weights
from test_resume import go_back
from test_tasks import load
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from torch import nn
from warm import spawn

pytestmark = pytest.mark.filterwarnings("default")


class Model(nn.Module):
    """Embeddings and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def get_input_embeddings(self) -> nn.Module:
        """As models of transformers."""
        return self.embed


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_parts_of_names_are_frozen(tmp_path: Path) -> None:
    module, model = load(tmp_path, "custom", "frozen", model__frozen="embed"), Model()
    module.freeze(model, "embed,layers.*.bias")
    assert trained(model) == {"layers.0.weight", "layers.1.weight"}
    with pytest.raises(SystemExit, match="frozen: head matches no parameter; some of them are"):
        module.freeze(model, "head")
    with pytest.raises(SystemExit, match="frozen: layers leaves nothing to train"):
        module.freeze(model, "layers")


@pytest.mark.parametrize("shape", [(2, 50), (1, 100)], ids=["rows", "rows as one"])
def test_noise_has_the_size_of_the_paper_and_none_in_evaluation(shape: tuple[int, int], tmp_path: Path) -> None:
    module, model = load(tmp_path, "causal_lm", "noise", model__neftune_alpha=5.0), Model()
    ids = torch.randint(0, 7, shape)
    clean = model.embed(ids)
    module.add_noise(model, 5.0, 50)
    noise = model.embed(ids) - clean
    size = 5.0 / (50 * 4) ** 0.5
    assert 0.9 * size < float(noise.abs().max()) <= size * (1 + 1e-6)
    assert abs(float(noise.mean())) < 0.2 * size
    model.eval()
    assert torch.equal(model.embed(ids), clean)


@pytest.mark.train
def test_frozen_parameters_stay_on_one_rank_and_in_shards(tmp_path: Path) -> None:
    values = {**REGRESSION, "data.eval": "", "model.frozen": "embed,blocks.0", "schedule.n_steps": 4}
    one, two = make(tmp_path / "one", {**values, **SINGLE}), make(tmp_path / "two", {**values, **STRATEGIES["fsdp"]})
    assert spawn(one, 1, tmp_path / "1", {"checkpointing_steps": 1, "checkpoints_total_limit": 0}) == 0
    assert spawn(two, 2, tmp_path / "2", {}, ON_STANDIN) == 0
    first = load_file(tmp_path / "1" / "checkpoints" / "checkpoint-00000001" / "model.safetensors")
    models = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("1", "2")]
    for name, value in models[0].items():
        assert torch.equal(value, first[name]) == name.startswith(("embed", "blocks.0")), name
        torch.testing.assert_close(models[1][name], value, rtol=1e-4, atol=1e-5)
    go_back(tmp_path / "1", 2, tmp_path / "again")
    assert spawn(one, 1, tmp_path / "again", {"resume": "auto"}) == 0
    assert weights(tmp_path / "again") == weights(tmp_path / "1")


@pytest.mark.train
def test_noise_is_drawn_alike_after_a_resume(tmp_path: Path) -> None:
    noisy = make(tmp_path / "noisy", {**SMALL, **SINGLE, "model.neftune_alpha": 5.0, "schedule.n_steps": 4})
    every = {"checkpointing_steps": 1, "checkpoints_total_limit": 0}
    assert spawn(noisy, 1, tmp_path / "whole", every) == 0
    go_back(tmp_path / "whole", 2, tmp_path / "again")
    assert spawn(noisy, 1, tmp_path / "again", {**every, "resume": "auto"}) == 0
    assert untimed(tmp_path / "again") == untimed(tmp_path / "whole")
    assert weights(tmp_path / "again") == weights(tmp_path / "whole")
    assert spawn(noisy, 1, tmp_path / "clean", {**every, "neftune_alpha": 0.0}) == 0
    assert untimed(tmp_path / "clean")[0]["loss"] != untimed(tmp_path / "whole")[0]["loss"]
