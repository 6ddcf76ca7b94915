"""Losses that draw random numbers: recognized, and held to what they can promise."""

import json
from pathlib import Path
from typing import Any

import pytest
import warm
from projects import REGRESSION, make

DENOISING = '''
class Denoiser(nn.Module):
    """Predicts the noise in a point, from the noisy point and the time."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(17, width), nn.SiLU(), nn.Linear(width, 16))

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        return self.layers(torch.cat((noisy, time[:, None]), dim=1))


def build_model(config: TaskConfig) -> nn.Module:
    return Denoiser()


def collate(samples: list[Any], counted: list[bool]) -> tuple[Batch, int]:
    parts = [torch.stack(part) for part in zip(*samples, strict=True)]
    names = ("points", "noise", "time") if len(parts) == 3 else ("points", "targets")
    return {**dict(zip(names, parts, strict=True)), "weights": torch.tensor(counted).float()}, sum(counted)


def denoising_loss(model: nn.Module, batch: Batch, noise: Tensor, time: Tensor) -> Tensor:
    noisy = (1 - time)[:, None] * batch["points"] + time[:, None] * noise
    return ((model(noisy, time) - noise).square().mean(dim=1) * batch["weights"]).sum()
'''
PLAIN = """
def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    noise = torch.randn_like(batch["points"])
    time = torch.randint(0, 1000, (len(noise),)) / 1000
    return denoising_loss(model, batch, noise, time)
"""
KEYED = """
def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    return denoising_loss(model, batch, batch["noise"], batch["time"])


def noisy(self: Regression, sample: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, ...]:
    return sample[0], torch.randn(16, generator=generator), torch.rand((), generator=generator)


Regression.augment = noisy
"""


def diffusion(folder: Path, loss: str) -> Path:
    """A project that learns to remove noise; what is random is drawn in one of two places."""
    project = make(folder, {**REGRESSION, "schedule.n_steps": 40})
    task = project / "task.py"
    text = task.read_text()
    cut, evaluation = text.index("def collate("), text.index("def evaluation_sums(")
    task.write_text(text[:cut] + DENOISING + loss + "\n\n" + text[evaluation:])
    return project


def card(folder: Path, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    words, env = ("rehearse", str(folder), "--json", *arguments), {"TMPDIR": str(folder.parent)}
    done = warm.trainwiz(folder / "train.py", *words, *warm.option(), env=env, timeout=600)
    assert done.code == code, done.err
    return {check["name"]: check for check in json.loads(done.out)["checks"]}


def test_noise_of_the_loss_is_recognized(tmp_path: Path) -> None:
    checks = card(diffusion(tmp_path / "plain", PLAIN), "--task")
    assert {name for name, check in checks.items() if check["verdict"] != "passed"} == {"randomness"}
    assert checks["randomness"]["verdict"] == "warning"
    lines = (tmp_path / "plain" / "task.py").read_text().splitlines()
    at = next(i for i, line in enumerate(lines, start=1) if "randn_like" in line)
    assert f"randn_like at task.py:{at}, randint at task.py:{at + 1}" in checks["randomness"]["found"]
    assert "one by one" in checks["summed_loss"]["found"]


def test_noise_of_samples_is_recognized(tmp_path: Path) -> None:
    checks = card(diffusion(tmp_path / "keyed", KEYED), "--task")
    assert {check["verdict"] for check in checks.values()} == {"passed"}
    assert "from its own generator: the same in any split" in checks["randomness"]["found"]


BUGS = {
    "summed_loss": (PLAIN, ' * batch["weights"]).sum()', ' * batch["weights"]).mean()', "loss_sum averages"),
    "padding": (PLAIN, ' * batch["weights"]).sum()', ").sum()", "padding samples affect the training"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_mistake_in_a_random_loss_is_still_found(name: str, tmp_path: Path) -> None:
    loss, before, after, words = BUGS[name]
    project = diffusion(tmp_path / "project", loss)
    task = project / "task.py"
    assert before in task.read_text()
    task.write_text(task.read_text().replace(before, after))
    wrong = card(project, "--task", code=1)[name]
    assert wrong["verdict"] == "failed"
    assert words in wrong["found"]


def test_dropout_that_ignores_evaluation_is_named(tmp_path: Path) -> None:
    project = diffusion(tmp_path / "project", KEYED)
    task = project / "task.py"
    text = task.read_text()
    before = "self.layers(torch.cat((noisy, time[:, None]), dim=1))"
    assert before in text
    task.write_text(text.replace(before, f"torch.nn.functional.dropout({before}, 0.1)"))
    at = task.read_text().split("functional.dropout")[0].count("\n") + 1
    found = card(project, "--task", code=1)["randomness"]
    assert found["verdict"] == "failed"
    assert f"dropout is also active in evaluation, which makes it random: dropout at task.py:{at}" in found["found"]
    task.write_text(text.replace(before, f"torch.nn.functional.dropout({before}, 0.1, self.training)"))
    assert {check["verdict"] for check in card(project, "--task").values()} == {"passed"}


@pytest.mark.train
@pytest.mark.parametrize("loss", [PLAIN, KEYED], ids=["plain", "keyed"])
def test_a_right_diffusion_model_passes_as_a_whole(loss: str, tmp_path: Path) -> None:
    checks = card(diffusion(tmp_path / "project", loss), "--updates", "4")
    wrong = {name: check["found"] for name, check in checks.items() if check["verdict"] != "passed"}
    assert wrong.keys() == ({"randomness"} if loss is PLAIN else set())
    assert max(checks["split"]["numbers"]["relative"].values()) <= 1e-5
    assert ("same random numbers for each sample" in checks["split"]["found"]) == (loss is PLAIN)
