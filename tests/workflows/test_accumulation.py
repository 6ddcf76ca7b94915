"""A user's script under `trainwiz launch --config`: both ways to accumulate equal one big batch on 1 and 2 ranks."""

import json
from pathlib import Path

import pytest
import torch
import warm

pytestmark = pytest.mark.train

SCRIPT = Path(__file__).parents[1] / "users" / "accumulation.py"
CONFIGS = {
    1: "distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 1\n",
    2: "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\n",
}
STYLES = {
    "no_sync": ["--style", "no_sync"],
    "accumulate": ["--style", "accumulate"],
    "accumulate over epochs": ["--style", "accumulate", "--sync_with_dataloader", "false"],
}


def launched(ranks: int, folder: Path, *arguments: str) -> list[float]:
    (folder / "accelerate.yaml").write_text("compute_environment: LOCAL_MACHINE\n" + CONFIGS[ranks])
    words = ["launch", "--config", "accelerate.yaml", str(SCRIPT), *arguments, "--output", "ended.json"]
    done = warm.trainwiz(SCRIPT, *words, cwd=folder)
    assert done.code == 0, done.out + done.err
    ended = json.loads((folder / "ended.json").read_text())
    assert ended["ranks"] == ranks
    return [float(weight) for weight in ended["weights"]]


def one_big_batch(windows: list[list[int]]) -> list[float]:
    """The same updates in plain torch, each of one batch."""
    generator_state = torch.get_rng_state()
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 2, bias=False)
    torch.set_rng_state(generator_state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    for window in windows:
        numbers = torch.cat([torch.arange(1.0, i + 2) for i in window])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(numbers[:, None]), (numbers % 2).long()).backward()
        optimizer.step()
    return [float(weight) for weight in model.weight.detach().flatten()]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("style", STYLES)
def test_a_script_of_the_user_learns_as_from_one_big_batch(style: str, ranks: int, tmp_path: Path) -> None:
    """12 samples, 8 to an update: the last 4 are an update of their own, or wait for the next epoch."""
    ends = [list(range(8)), list(range(8, 12))] * 2
    over = [list(range(8)), [8, 9, 10, 11, 0, 1, 2, 3], list(range(4, 12))]
    found = launched(ranks, tmp_path, *STYLES[style], "--batch", str(2 // ranks))
    assert found == pytest.approx(one_big_batch(over if "epochs" in style else ends), abs=1e-6)


@pytest.mark.parametrize("style", ["no_sync", "accumulate"])
def test_the_tutorials_numbers_on_two_ranks(style: str, tmp_path: Path) -> None:
    found = launched(2, tmp_path, *STYLES[style], "--samples", "16", "--steps", "8", "--epochs", "1")
    assert [round(weight, 4) for weight in found] == [0.2117, 0.3172]


def test_the_tutorials_numbers_on_one_rank(tmp_path: Path) -> None:
    found = launched(1, tmp_path, *STYLES["accumulate"], "--samples", "8", "--steps", "8", "--epochs", "1")
    assert [round(weight, 4) for weight in found] == [0.0953, 0.4337]
