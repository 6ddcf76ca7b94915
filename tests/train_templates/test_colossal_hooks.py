"""What a task.py of the user's own may decide, under each plugin of Colossal-AI, against one rank of accelerate.

The plugins other than TorchDDP run with `standin_colossalai`, which answers for the device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import projects
import pytest
import warm
from projects import CLOCKED
from safetensors.torch import load_file
from test_colossalai import HERE, PLUGINS, PORT, PYTHON, STANDIN, UNCHECKED
from test_hooks import STEADY, with_task
from test_training import SINGLE

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-colossalai here: make colossalai"),
]

FINAL = "model.safetensors"
KINDS = ("colossal_ddp", *PLUGINS)
REAL, UPDATES, HALF = 8, 4, 2
CUT = {"real_batch_size": REAL, "logging_steps": 1, "n_steps": UPDATES}
ONE = {**STEADY, **CUT, "per_device_batch_size": REAL, "gradient_accumulation_steps": 1}
TWO = {**STEADY, **CUT, "per_device_batch_size": 2, "gradient_accumulation_steps": 2, "num_processes": 2}
BUILT = """
def build_optimizers(config, model):
    vectors, rest = [p for p in model.parameters() if p.ndim < 2], [p for p in model.parameters() if p.ndim > 1]
    return torch.optim.RMSprop([{"params": rest, "lr": 0.01}, {"params": vectors, "lr": 0.02}], momentum=0.5)
"""
AFTER = """
def after_update(config, model, update):
    for weight in model.parameters():
        weight.mul_(0.5 / float(weight.norm()))
    model.seen.add_(next(model.parameters()).mean())
"""
SEEN = "        super().__init__()\n        self.register_buffer('seen', torch.zeros(()))\n"


def built(text: str) -> str:
    """The recommender with its own optimizer in place of groups, and what changes weights and a buffer."""
    text = text.replace("def parameter_groups", "def unused_groups").replace("        super().__init__()\n", SEEN, 1)
    return text + BUILT + AFTER


TASKS = {"groups": "recommender", "average": "diffusion", "stream": "time_series", "built": "recommender"}


def project(folder: Path, name: str, values: dict[str, Any], *arguments: str) -> Path:
    with_task(folder, TASKS[name], {**PORT, **values}, *arguments)
    if name == "built":
        (folder / "task.py").write_text(built((folder / "task.py").read_text()))
    return folder


def records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def weights(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = load_file(output / "model" / FINAL)
    return found


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each task by one rank of accelerate, which takes the whole real batch at once."""
    folder, outputs = tmp_path_factory.mktemp("one"), {}
    for name in TASKS:
        outputs[name] = folder / f"{name}-out"
        made = project(folder / name, name, SINGLE)
        assert warm.spawn(made, 1, outputs[name], ONE) == 0
    return outputs


def trained(folder: Path, output: Path, kind: str, **other: object) -> list[Any]:
    said = [f"--{name}={value}" for name, value in {**TWO, "output_dir": output, **other}.items()]
    return warm.run(folder, ["train.py", *said], 2, env=STANDIN if kind in PLUGINS else None, python=str(PYTHON))


CASES = [(kind, name) for kind in KINDS for name in TASKS if not (kind == "gemini" and name in ("average", "built"))]


# docs/decisions/colossalai.md: What a custom project's functions get under each plugin
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_hooks_follow_one_rank_and_resume(kind: str, name: str, one_rank: dict[str, Path], tmp_path: Path) -> None:
    values = {"strategy.kind": kind, **PLUGINS.get(kind, {}), **(UNCHECKED if kind in PLUGINS else {})}
    folder, parts = project(tmp_path / "project", name, values, *HERE), tmp_path / "parts"
    whole = folder / "output"
    for output, other in ((whole, {}), (parts, {"n_steps": HALF}), (parts, {"resume": "auto"})):
        for done in trained(folder, output, kind, **other):
            assert done.code == 0, done.err[-3000:]
    expected, mine = records(one_rank[name]), records(whole)
    assert len(mine) == len(expected)
    loose = kind == "gemini"  # which computes in bf16
    for one, other in zip(expected, mine, strict=True):
        assert one.keys() == other.keys()
        for field in one.keys() - CLOCKED:
            tolerance = {"rel": 0.05, "abs": 0.05} if loose else {"rel": 1e-4, "abs": 1e-6}
            assert other[field] == pytest.approx(one[field], **tolerance), (field, one["update"])
    for key, tensor in weights(one_rank[name]).items():
        if not key.endswith("in_proj_bias"):  # its gradient is rounding, which Adam magnifies
            close = {"rel": 0.1, "abs": 0.1} if loose else {"rel": 1e-3, "abs": 1e-5}
            assert weights(whole)[key].float().numpy() == pytest.approx(tensor.numpy(), **close), key
    again = weights(parts)
    assert all((again[key] == tensor).all() for key, tensor in weights(whole).items())
    done = projects.trainwiz("export", str(whole), *warm.option(str(PYTHON)), "--output", str(tmp_path / "exported"))
    assert done.code == 0, done.err
    assert (tmp_path / "exported" / FINAL).read_bytes() == (whole / "model" / FINAL).read_bytes()


REFUSED = {
    "colossal_fsdp": ("Adafactor(model.parameters())", "a step of Adafactor depends on the shape of the whole one"),
    "gemini": ("SGD(model.parameters())", "Gemini needs FusedAdam, HybridAdam or CPUAdam"),
}
"""What a plugin cannot step, and how it says so."""


@pytest.mark.parametrize("kind", REFUSED)
def test_optimizers_that_a_plugin_cannot_step_are_refused(kind: str, tmp_path: Path) -> None:
    optimizer, words = REFUSED[kind]
    values = {"strategy.kind": kind, **PLUGINS[kind], **UNCHECKED}
    folder = project(tmp_path / "project", "groups", values, *HERE)
    text = (folder / "task.py").read_text().replace("def parameter_groups", "def unused_groups")
    text += f"\n\ndef build_optimizers(config, model):\n    return torch.optim.{optimizer}\n"
    (folder / "task.py").write_text(text)
    ended = trained(folder, tmp_path / "output", kind)
    assert all(done.code == 1 for done in ended)
    # A rank that is still connecting loses the other, which has refused.
    assert any(words in done.err for done in ended), ended[0].err
