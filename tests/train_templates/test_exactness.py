"""Accumulation and ranks change nothing: the generated loop against one big batch, over real processes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from projects import REGRESSION, make
from safetensors.torch import load_file
from tasks import gradients
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from warm import spawn

pytestmark = pytest.mark.train

TASKS = Path(__file__).parents[1] / "tasks"
PLAIN = {"optimizer.name": "sgd", "optimizer.weight_decay": 0, "optimizer.gradient_clipping": 0, "data.eval": ""}
STEADY = {"lr_scheduler_type": "constant", "n_warmup_steps": 0, "checkpointing_steps": 0}


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A generated project of each strategy, without a task of its own."""
    root = tmp_path_factory.mktemp("exactness")
    return {name: make(root / name, {**REGRESSION, **PLAIN, **values}) for name, values in CHOSEN.items()}


CHOSEN = {"single": SINGLE, **{name: STRATEGIES[name] for name in ("ddp", "zero1", "zero2", "zero3", "fsdp")}}


def trained(
    project: Path, task: str, ranks: int, output: Path, overrides: dict[str, object]
) -> dict[str, torch.Tensor]:
    """The final weights of the project's loop with another task."""
    folder = output.with_name(output.name + "-project")
    shutil.copytree(project, folder)
    shutil.copy(TASKS / f"{task}.py", folder / "task.py")
    env = ON_STANDIN if "fsdp" in project.name else None
    assert spawn(folder, ranks, output, {**STEADY, "num_processes": ranks, **overrides}, env=env) == 0
    return load_file(output / "model" / "model.safetensors")


def split(real: int, ranks: int, steps: int) -> dict[str, object]:
    """A real batch cut over ranks and accumulation."""
    micro = real // ranks // steps
    return {"real_batch_size": real, "per_device_batch_size": micro, "gradient_accumulation_steps": steps}


@pytest.mark.parametrize("steps", [1, 4])
def test_the_tutorial_on_a_line(steps: int, projects: dict[str, Path], tmp_path: Path) -> None:
    overrides = {**split(8, 1, steps), "n_steps": 1, "learning_rate": 0.02}
    weight = trained(projects["single"], "line", 1, tmp_path / "out", overrides)["weight"]
    assert f"{weight.item():.5f}" == "2.04000"


@pytest.mark.parametrize(
    ("ranks", "samples", "steps", "ends"),
    [
        (1, 8, 1, [0.0953, 0.4337]),
        (1, 8, 2, [0.0953, 0.4337]),
        (1, 8, 8, [0.0953, 0.4337]),
        (2, 16, 1, [0.2117, 0.3172]),
        (2, 16, 2, [0.2117, 0.3172]),
        (1, 16, 4, [0.2117, 0.3172]),
    ],
)
def test_the_tutorial_on_ragged_samples(
    ranks: int, samples: int, steps: int, ends: list[float], projects: dict[str, Path], tmp_path: Path
) -> None:
    """The published numbers; on two ranks a mean of means would give others."""
    overrides = {**split(samples, ranks, steps), "n_samples": samples, "n_steps": 1, "learning_rate": 0.08}
    project = projects["ddp" if ranks > 1 else "single"]
    weight = trained(project, "parity", ranks, tmp_path / "out", overrides)["weight"]
    assert [round(w, 4) for w in weight.flatten().tolist()] == ends


def big_batch(kind: int, size: int, masked: int) -> torch.Tensor:
    """The gradient of one big batch in fp64, by autograd, at zero."""
    last = kind == len(gradients.KINDS) - 1
    rows = range(kind * size, kind * size + (gradients.SHORT if last else size))
    samples = [gradients.sample(position, size, masked) for position in rows]
    features = torch.cat([s[0] for s in samples]).double()
    labels = torch.cat([s[1] for s in samples])
    weight = torch.zeros(gradients.CLASSES, gradients.FEATURES, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(features @ weight.T, labels, ignore_index=-100).backward()
    assert weight.grad is not None
    return weight.grad


CASES = [
    ("single", 1, 1, False),
    ("single", 1, 4, False),
    ("single", 1, 16, False),
    ("single", 1, 16, True),
    ("ddp", 2, 1, False),
    ("ddp", 2, 4, False),
    ("ddp", 2, 16, False),
    ("ddp", 2, 1, True),
    ("ddp", 2, 16, True),
    ("zero1", 2, 4, False),
    ("zero2", 2, 1, False),
    ("zero2", 2, 16, False),
    ("zero3", 2, 4, False),
    ("fsdp", 2, 1, False),
    ("fsdp", 2, 16, False),
    ("fsdp each", 2, 16, False),
    ("fsdp each", 4, 4, False),
]


@pytest.mark.parametrize(("name", "ranks", "steps", "double"), CASES)
def test_the_gradient_is_that_of_one_big_batch(
    name: str, ranks: int, steps: int, double: bool, projects: dict[str, Path], tmp_path: Path
) -> None:
    size = 32
    micro = size // ranks // steps
    masked = micro if micro < size else 0  # the first micro-batch of rank 0 counts nothing
    task = {"size": size, "masked": masked, "double": json.dumps(double)}
    overrides = {**split(size, ranks, steps), **task, "n_steps": 4, "learning_rate": 1.0}
    name, _, each = name.partition(" ")
    overrides |= {"sync_each_batch": "true"} if each else {}
    weights = trained(projects[name], "gradients", ranks, tmp_path / "out", overrides)["weight"].double()
    bound = 1e-12 if double else 1e-6 if name in ("single", "ddp") else 1e-5
    for kind, label in enumerate(gradients.KINDS):
        repeated = sum(0.9**later for later in range(len(gradients.KINDS) - kind))  # momentum goes on
        mine, theirs = -weights[kind] / repeated, big_batch(kind, size, masked)
        error = ((mine - theirs).norm() / theirs.norm()).item()
        assert error <= bound, f"{label}: {error:.1e}"
