"""What a task.py of the user's own may decide beside data, model and loss, by examples of it that are trained."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import projects
import pytest
import warm
from projects import CLOCKED, REGRESSION, make
from safetensors.torch import load_file
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from warm import spawn

pytestmark = pytest.mark.train

CHILD = Path(__file__).parents[1] / "engine_children" / "many_runs.py"
EXAMPLES = Path(__file__).parents[1] / "own_tasks"
NAMES = ("gan", "recommender", "time_series", "diffusion")
REAL, UPDATES, HALF = 8, 6, 3
STEADY = {
    "real_batch_size": REAL,
    "lr_scheduler_type": "constant",
    "n_warmup_steps": 0,
    "logging_steps": 1,
    "checkpointing_steps": 0,
    "learning_rate": 0.01,
}
Records = list[dict[str, Any]]


def run(project: Path, output: Path, ranks: int, micro: int, **arguments: object) -> dict[str, Any]:
    cut = {"per_device_batch_size": micro, "gradient_accumulation_steps": REAL // ranks // micro}
    return {
        "project": str(project),
        "ranks": ranks,
        "output": str(output),
        "arguments": {**STEADY, **cut, "n_steps": UPDATES, **arguments},
    }


def many(runs: list[dict[str, Any]], folder: Path) -> list[list[int]]:
    """Run them one after the other; the exit codes of the ranks of each."""
    (folder / "runs.json").write_text(json.dumps(runs))
    done = warm.child(CHILD, runs[0]["project"], str(folder / "runs.json"), seconds=300)
    assert done.code == 0, done.err
    return [end["codes"] for end in json.loads(done.out.splitlines()[-1])]


def records(output: Path) -> Records:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def said(output: Path, rank: int = 0) -> str:
    return (output / f"rank-{rank}.log").read_text()


def with_task(folder: Path, name: str, values: dict[str, Any] | None = None, *arguments: str) -> Path:
    """A project with one of the examples."""
    make(folder, {**REGRESSION, **(values or {})}, *arguments)
    shutil.copy(EXAMPLES / f"{name}.py", folder / "task.py")
    shutil.copytree(EXAMPLES / "shapes", folder / "shapes", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each example's outputs: one rank, two, and two that stop half way, where one rank goes on."""
    folder = tmp_path_factory.mktemp("own")
    outputs, runs = {}, []
    for name in NAMES:
        project, out = with_task(folder / name, name), folder / f"{name}-out"
        runs += [
            run(project, out / "one", 1, 4),
            run(project, out / "two", 2, 2),
            run(project, out / "parts", 2, 4, n_steps=HALF),
            run(project, out / "parts", 1, 2, resume="auto", num_workers=1),
        ]
        outputs[name] = out
    codes = many(runs, folder)
    for each, codes_of in zip(runs, codes, strict=True):
        assert set(codes_of) == {0}, said(Path(each["output"]))
    return outputs


def assert_same(mine: Records, theirs: Records) -> None:
    assert mine
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - CLOCKED:
            assert one[name] == pytest.approx(other[name], rel=2e-5, abs=1e-7), (name, one["update"])


@pytest.mark.parametrize("name", NAMES)
def test_ranks_and_interruptions_change_nothing(name: str, trained: dict[str, Path]) -> None:
    """Losses, rates and metrics, and the weights in the end: averages of weights among them."""
    out = trained[name]
    one = records(out / "one")
    assert_same(records(out / "two"), one)
    resumed = [r for r in records(out / "parts") if r["update"] > HALF]
    assert_same(resumed, [r for r in one if r["update"] > HALF])
    assert [r["update"] for r in one if "loss" in r] == list(range(1, UPDATES + 1))
    weights = {part: load_file(out / part / "model" / "model.safetensors") for part in ("one", "two", "parts")}
    for key, tensor in weights["one"].items():
        if key.endswith("in_proj_bias"):
            continue  # no loss depends on the keys' bias: its gradient is rounding, which Adam magnifies
        for part in ("two", "parts"):
            assert weights[part][key].numpy() == pytest.approx(tensor.numpy(), rel=1e-4, abs=1e-6), (part, key)


# docs/decisions/tasks.md: Several optimizers take turns on a bare model
def test_optimizers_take_turns(trained: dict[str, Path]) -> None:
    """As a bare loop over the same batches does it."""
    rows = [r for r in records(trained["gan"] / "one") if "loss" in r]
    assert all(r["loss"] == pytest.approx(r["loss_critic"] + r["loss_generator"], rel=1e-5) for r in rows)
    bare = subprocess.run(
        [warm.python(), str(EXAMPLES / "bare_gan.py"), str(UPDATES), str(REAL)],
        cwd=trained["gan"].parent / "gan",
        env=projects.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode == 0, bare.stderr
    expected = json.loads(bare.stdout)
    for row, (critic, generator) in zip(rows, expected["losses"], strict=True):
        assert (row["loss_critic"], row["loss_generator"]) == pytest.approx((critic, generator), rel=1e-4)
    weights = load_file(trained["gan"] / "two" / "model" / "model.safetensors")
    for key, values in expected["weights"].items():
        assert weights[key].flatten().tolist() == pytest.approx(values, rel=1e-3, abs=1e-5), key


def test_metrics_of_all_samples_without_padding(trained: dict[str, Path]) -> None:
    for name, rows in {"recommender": 61, "gan": 60}.items():
        [evaluated] = [r for r in records(trained[name] / "two") if "eval_loss" in r]
        assert evaluated["eval_rows"] == rows
    assert evaluated["eval_radius_median"] >= 0


def test_rates_of_groups_follow_the_schedule(trained: dict[str, Path]) -> None:
    rows = [r for r in records(trained["recommender"] / "one") if "loss" in r]
    assert [r["lr"] for r in rows] == pytest.approx([0.01 / (1 + update) ** 0.5 for update in range(UPDATES)])


# docs/decisions/tasks.md: A stream is read by every rank and resumed by reading past
def test_a_stream_is_read_past_what_was_used(trained: dict[str, Path]) -> None:
    """Three updates are an epoch of 21 samples; so the fourth begins the next epoch, and nothing is skipped."""
    out = trained["time_series"]
    assert "skipping the first" not in said(out / "parts")
    assert [r["epoch"] for r in records(out / "one") if "loss" in r][-1] == 2


def test_hooks_of_sharded_weights_see_whole_ones(tmp_path: Path) -> None:
    """Groups, and after each update numbers that are read of weights, which each rank has a part of."""
    hook = """
def after_update(config, model, update):
    model.seen.add_(next(model.parameters()).mean())
    for weight in model.parameters():
        weight.mul_(0.5 / float(weight.norm()))
"""
    runs = {"one": (SINGLE, 1, None), "two": (STRATEGIES["fsdp"], 2, ON_STANDIN)}
    for name, (spread, ranks, environ) in runs.items():
        project = with_task(tmp_path / name, "recommender", spread)
        text = (project / "task.py").read_text() + hook
        seen = "        super().__init__()\n        self.register_buffer('seen', torch.zeros(()))\n"
        (project / "task.py").write_text(text.replace("        super().__init__()\n", seen, 1))
        cut = {"per_device_batch_size": 2, "gradient_accumulation_steps": 4 // ranks, "n_steps": 2}
        assert spawn(project, ranks, tmp_path / f"{name}-out", {**STEADY, **cut}, env=environ) == 0
    one, two = (load_file(tmp_path / f"{name}-out" / "model" / "model.safetensors") for name in runs)
    assert one["seen"].abs() > 0
    for key, tensor in one.items():
        assert two[key].numpy() == pytest.approx(tensor.numpy(), rel=1e-4, abs=1e-6), key


def test_what_cannot_be_is_refused_with_its_reason(tmp_path: Path) -> None:
    project = with_task(tmp_path / "project", "time_series")
    broken = with_task(tmp_path / "broken", "gan")
    text = (broken / "task.py").read_text()
    (broken / "task.py").write_text(text.replace("model.critic.parameters()", "model.critic[0].parameters()"))
    short = with_task(tmp_path / "short", "time_series")
    text = (short / "task.py").read_text()
    (short / "task.py").write_text(text.replace("return self.config.n_samples\n", "return 1 + self.config.n_samples\n"))
    long = with_task(tmp_path / "long", "time_series")
    (long / "task.py").write_text(text.replace("return self.config.n_samples\n", "return self.config.n_samples - 1\n"))
    closed = with_task(tmp_path / "closed", "time_series")
    built = "\n\ndef build_optimizers(config, model):\n    return torch.optim.LBFGS(model.parameters())\n"
    (closed / "task.py").write_text(text + built)
    cases = {
        "closed": (run(closed, tmp_path / "closed-out", 1, 8), "cannot use: LBFGS needs a closure"),
        "endless": (run(project, tmp_path / "endless", 1, 8, stated="false", n_steps=4), ""),
        "epochs": (
            run(project, tmp_path / "epochs", 1, 8, stated="false", n_steps=0, n_epochs=1),
            "Waves is a stream without a length: give it __len__, because n_epochs counts in it",
        ),
        "left": (run(broken, tmp_path / "left", 1, 8), "parameters without an optimizer: 4 (critic.2.weight)"),
        "short": (run(short, tmp_path / "short-out", 1, 8), "the stream ended after 21 samples, but its length is 22"),
        "long": (run(long, tmp_path / "long-out", 1, 8), "the stream has more than the 20 samples"),
    }
    again = run(project, tmp_path / "endless", 1, 8, stated="false", n_steps=5, resume="auto")
    runs = [case for case, _ in cases.values()]
    codes = dict(zip([*cases, "again"], many([*runs, again], tmp_path), strict=True))
    for name, (case, words) in cases.items():
        assert codes[name] == [1 if words else 0], (name, said(Path(case["output"])))
        assert words in said(Path(case["output"])), name
    assert codes["again"] == [0]
    assert "skipping the first 32 samples of the stream" in said(tmp_path / "endless")
