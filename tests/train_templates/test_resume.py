"""Resuming real trainings: after any update, on another number of ranks, after a full disk; and exporting them."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import planting
import projects
import pytest
import warm
from projects import REGRESSION, SMALL, make
from safetensors import safe_open
from test_checkpoints import small_disk  # noqa: F401
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from warm import launch, spawn

pytestmark = pytest.mark.train

FEW = {"n_samples": 256}
"""Of REGRESSION, to train on and to evaluate: with its 2048, evaluations take as long as all the rest."""
NOISY: dict[str, object] = {
    **SMALL,
    "task": "image_classification",
    "batch.real_batch_size": 384,
    "batch.per_device_batch_size": 96,
    "data.num_workers": 1,
    "schedule.n_steps": 8,
    "checkpoint.checkpointing_steps": 1,
    "checkpoint.checkpoints_total_limit": "",
}
"""Augmented pictures through a data worker and dropout; two epochs of 4 updates, the last of each is filled up."""


def noisy(folder: Path, values: dict[str, object]) -> Path:
    """A project whose model also drops out."""
    network = make(folder, {**NOISY, **values}) / "network.py"
    text = network.read_text()
    features = "self.blocks(self.stem(pictures)).mean((2, 3))"
    assert text.count(features) == 1
    network.write_text(text.replace(features, f"nn.functional.dropout({features}, 0.2, self.training)"))
    return folder


def trained(
    folder: Path,
    ranks: int,
    output: Path,
    env: dict[str, str] | None = None,
    seconds: float = 200,
    **overrides: object,
) -> str:
    """Train to the end; the hash of the final weights."""
    assert spawn(folder, ranks, output, overrides, env, seconds) == 0
    return hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest()


def go_back(source: Path, update: int, output: Path) -> None:
    """Leave in `output` what a training that was killed after that update has left."""
    name = f"checkpoints/checkpoint-{update:08d}"
    shutil.copytree(source / name, output / name)
    lines = (source / "metrics.jsonl").read_text().splitlines(keepends=True)
    (output / "metrics.jsonl").write_text("".join(lines[: update + 1]))  # one update more was logged, not saved


def curve(output: Path) -> dict[int, float]:
    """The loss by update."""
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return {record["update"]: record["loss"] for record in records if "loss" in record}


# docs/decisions/loop.md: Random generators are seeded from keys and never restored
@pytest.mark.parametrize("name", ["single", "ddp"])
def test_after_every_update_with_dropout_augmentation_and_workers_the_bytes_are_the_same(
    name: str, tmp_path: Path
) -> None:
    """benchmarks/checkpoints.py does it under ZeRO, too."""
    values = SINGLE if name == "single" else {**STRATEGIES[name], "checkpoint.background": True}
    folder, ranks = noisy(tmp_path / "project", values), 1 if name == "single" else 2
    whole = trained(folder, ranks, tmp_path / "whole")
    records = map(json.loads, (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    assert [record["epoch"] for record in records if "loss" in record] == [n / 4 for n in range(1, 9)]
    for update in range(1, 8):
        go_back(tmp_path / "whole", update, tmp_path / str(update))
        assert trained(folder, ranks, tmp_path / str(update), resume="auto") == whole, update
        assert curve(tmp_path / str(update)) == curve(tmp_path / "whole")


# docs/decisions/loop.md: DDP's buckets are laid out before the first update
@pytest.mark.parametrize("name", ["ddp", "zero2"])
def test_four_ranks_add_gradients_in_the_same_order_after_a_resume(name: str, tmp_path: Path) -> None:
    """Two ranks would not show it: a sum of two is the same in either order."""
    every = {"checkpoint.checkpointing_steps": 1, "checkpoint.checkpoints_total_limit": "", "schedule.n_steps": 5}
    folder = make(tmp_path / "project", {**REGRESSION, **STRATEGIES[name], **every})
    four = {**FEW, "num_processes": 4, "gradient_accumulation_steps": 1}
    whole = trained(folder, 4, tmp_path / "whole", **four)
    for update in (1, 3):
        go_back(tmp_path / "whole", update, tmp_path / str(update))
        assert trained(folder, 4, tmp_path / str(update), resume="auto", **four) == whole, update


def test_a_part_that_is_called_as_ddp_calls_the_model_is_saved_with_the_others(tmp_path: Path) -> None:
    task = make(tmp_path / "project", {**REGRESSION, **SINGLE, "schedule.n_steps": 3}) / "task.py"
    task.write_text(task.read_text().replace("self.blocks", "self.module"))
    assert launch(task.parent).code == 0
    saved = task.parent / "runs/latest/checkpoints/checkpoint-00000003/model.safetensors"
    with safe_open(saved, "pt") as weights:
        assert {name.split(".")[0] for name in weights.keys()} == {"embed", "module", "head"}  # noqa: SIM118 no dict


# docs/decisions/checkpoints.md: train.py corrects three faults of DeepSpeed's converter
@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero2", "zero3"])
def test_on_another_number_of_ranks_the_trajectory_goes_on(name: str, tmp_path: Path) -> None:
    """From 2 ranks to 1 and back to 2; the real batch stays, the accumulation follows.

    Matrices decay so fast that biases which did the same would be seen.
    """
    every = {"checkpoint.checkpointing_steps": 1, "checkpoint.checkpoints_total_limit": "", "optimizer.weight_decay": 9}
    folder = make(tmp_path / "project", {**REGRESSION, **STRATEGIES[name], **every})
    env = ON_STANDIN if name == "fsdp" else None
    trained(folder, 2, tmp_path / "whole", env, **FEW)
    alone, both = tmp_path / "alone", tmp_path / "both"
    go_back(tmp_path / "whole", 2, alone)
    trained(folder, 1, alone, env, resume="auto", num_processes=1, gradient_accumulation_steps=4, **FEW)
    go_back(alone, 5, both)
    trained(folder, 2, both, env, resume="auto", **FEW)
    for output in (alone, both):
        assert not (output / "whole").exists(), "what was put together is gone again"
        assert curve(output) == pytest.approx(curve(tmp_path / "whole"), rel=1e-5)
        exported_is_final(folder, output)
    ends_at_a_planted_command(name if name != "ddp" else "whole", folder, both, env)


def ends_at_a_planted_command(name: str, folder: Path, output: Path, env: dict[str, str] | None) -> None:
    """On as many ranks as saved it, on another number, and in `export`: nothing of it runs."""
    newest, canary = max((output / "checkpoints").glob("checkpoint-*")), output / "canary"
    file = planting.KINDS[name]
    subprocess.run([warm.python(), planting.__file__, str(newest), file, str(canary)], check=True)
    fewer = ("--num_processes", "1", "--gradient_accumulation_steps", "4")
    for ranks, overrides in ((2, ()), (1, fewer)):
        few = (part for name, value in FEW.items() for part in (f"--{name}", str(value)))
        argv = ("train.py", "--output_dir", str(output), "--resume", "auto", *few, *overrides)
        ended = warm.run(folder, argv, ranks, env=env, seconds=200)
        assert all(done.code for done in ended), "no rank trains, and none waits for another"
        assert any("posix.system" in done.err for done in ended), ended[0].err
        assert not canary.exists()
    if name != "whole":  # its weights are no pickle
        shutil.rmtree(folder / "output")
        shutil.copytree(output / "checkpoints", folder / "output" / "checkpoints")
        done = projects.trainwiz("export", str(folder), "--output", str(output / "planted"), *warm.option())
        assert not canary.exists()
        assert (done.code, "contains posix.system" in done.err) == (1, True), done.err


def exported_is_final(folder: Path, output: Path, *, cold: bool = False) -> None:
    """What `trainwiz export` writes from the last checkpoint is what the training itself wrote at its end."""
    shutil.rmtree(folder / "output", ignore_errors=True)
    shutil.copytree(output / "checkpoints", folder / "output" / "checkpoints")
    target = output / "exported"
    done = projects.trainwiz("export", str(folder), "--output", str(target), "--json", *(() if cold else warm.option()))
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["written"], told["uploaded"]) == ([str(target)], None)
    assert Path(told["checkpoint"]).parent == folder / "output" / "checkpoints"
    files = sorted(path.name for path in (output / "model").iterdir())
    assert files == sorted(path.name for path in target.iterdir())
    for name in files:
        assert (target / name).read_bytes() == (output / "model" / name).read_bytes(), name
    again = projects.trainwiz("export", str(folder), "--output", str(target))
    assert (again.code, "already exists" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("zero2", {}),
        ("zero3", {"precision.mixed_precision": "bf16"}),
    ],
)
def test_weights_in_shards_are_exported_whole(name: str, values: dict[str, object], tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**REGRESSION, **STRATEGIES[name], **values, "schedule.n_steps": 3})
    trained(folder, 2, tmp_path / "output", **FEW)
    exported_is_final(folder, tmp_path / "output", cold=name == "zero2")


@pytest.mark.parametrize("name", ["ddp", "zero2"])
def test_a_disk_that_fills_up_costs_no_checkpoint(name: str, tmp_path: Path, small_disk: Path) -> None:  # noqa: F811
    """The training ends with an error, since its last update could not be saved, and everybody ends."""
    subprocess.run(["mount", "-o", "remount,size=900k", str(small_disk)], check=True)
    values = {"checkpoint.checkpointing_steps": 2, "checkpoint.checkpoints_total_limit": "", "task": "custom"}
    folder = make(tmp_path / "project", {**REGRESSION, **STRATEGIES[name], **values})
    output = small_disk / "output"
    assert spawn(folder, 2, output, {}) != 0
    found = projects.trainwiz("checkpoints", str(output), "--json")
    rows: list[dict[str, Any]] = json.loads(found.out)
    assert [row["complete"] for row in rows if row["valid"]] == [True] * len(rows)
    assert 1 <= len(rows) < 4
    assert rows[0]["update"] == 2


def test_a_plan_with_fewer_ranks_goes_on_by_launch(tmp_path: Path) -> None:
    values = {**REGRESSION, "schedule.n_steps": 8, "checkpoint.checkpointing_steps": 4}
    folder = make(tmp_path / "project", values)
    assert launch(folder).code == 0
    whole = curve(folder / "runs" / "latest")
    shutil.rmtree(folder / "runs" / "latest" / "checkpoints" / "checkpoint-00000008")
    fewer = {**values, **SINGLE, "batch.gradient_accumulation_steps": 4}
    settings = [word for key, value in fewer.items() for word in ("--set", f"{key}={value}")]
    done = projects.trainwiz("init", str(folder), "--defaults", "--yes", "--on-conflict", "overwrite", *settings)
    assert done.code == 0, done.err
    done = launch(folder, "--resume")
    assert done.code == 0, done.err
    assert "note: the plan has changed" in done.err
    assert "changed since: num_processes 2 -> 1" in done.out
    rest = curve(folder / "runs" / "latest")
    assert rest == pytest.approx({update: whole[update] for update in range(5, 9)}, rel=1e-5)
