"""Real training through `trainwiz init` and `trainwiz launch`, with real ranks of every engine."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import projects
import pytest
import warm
from engine_children import claimed
from patience import patience
from projects import REGRESSION, SMALL, forecast_and_measured, launch, losses, make, metrics

pytestmark = pytest.mark.train

SINGLE = {"strategy.kind": "single", "machine.num_processes": 1}
CURVE = {**SMALL, "schedule.n_steps": 5}
"""Warm-up, the highest rate, and half of the way down."""
ZERO = {"strategy.kind": "deepspeed"}
OFFLOAD = {**ZERO, "strategy.offload_optimizer_device": "cpu"}
STRATEGIES: dict[str, dict[str, object]] = {
    "ddp": {"strategy.kind": "ddp"},
    "zero0": {**ZERO, "strategy.zero_stage": 0},
    "zero1": {**ZERO, "strategy.zero_stage": 1},
    "zero2": {**ZERO, "strategy.zero_stage": 2},
    "zero3": {**ZERO, "strategy.zero_stage": 3, "strategy.zero3_save_16bit_model": True},
    "zero2-offload": {**OFFLOAD, "strategy.zero_stage": 2},
    "zero3-offload": {
        **OFFLOAD,
        "strategy.zero_stage": 3,
        "strategy.offload_param_device": "cpu",
        "strategy.zero3_save_16bit_model": True,
    },
    "fsdp": {"strategy.kind": "fsdp", "ignore": {"TW305": "the stand-in shards on CPU ranks"}},
}
STARTED_AS_USERS_DO = ("ddp", "zero2")
"""One of each engine: how a rank starts, and what its libraries take of host memory, is the same for its strategies.

What these keep in host memory beside that is measured in tests/estimate/test_estimate.py.
"""
ON_STANDIN = {"ACCELERATE_TORCH_DEVICE": "cpu", "PYTHONPATH": projects.python_path(projects.STANDIN)}


def run(folder: Path, *arguments: str, start: Callable[..., projects.Done] = warm.launch) -> projects.Done:
    """Launch; FSDP on CPU ranks needs the stand-in."""
    on_standin = "\n  kind: fsdp" in (folder / "trainwiz.yaml").read_text()
    return start(folder, *arguments, env=ON_STANDIN if on_standin else None)


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The records of one rank that takes the whole real batch by itself, 4 samples at a time."""
    folder = make(tmp_path_factory.mktemp("single") / "project", {**CURVE, **SINGLE})
    done = run(folder)
    assert done.code == 0, done.err
    is_as_forecast(folder, "checkpoint_bytes")
    return metrics(folder)


def is_as_forecast(folder: Path, *names: str) -> None:
    """Host memory is only that of a training where its ranks began as users begin them."""
    for name in names:
        forecast, measured = forecast_and_measured(folder, name)
        # Of a model this small, the headers of a shard's tensors count.
        assert forecast == pytest.approx(measured, rel=0.05, abs=6e5), name


def test_one_rank_learns_and_records_everything(one_rank: list[dict[str, float]]) -> None:
    assert [r["update"] for r in one_rank] == list(range(1, 6))
    assert one_rank[-1]["loss"] < one_rank[0]["loss"] - 1
    assert set(one_rank[0]) == {
        "update",
        "epoch",
        "loss",
        "lr",
        "grad_norm_pre_clip",
        "grad_norm_post_clip",
        "weight_norm",
        "tokens_per_second",
        "data_wait_share",
        "seconds_per_update",
    }
    assert all(r["grad_norm_post_clip"] == min(1.0, r["grad_norm_pre_clip"]) for r in one_rank)
    assert [r["lr"] for r in one_rank[:2]] == [1.5e-3, 3e-3]
    assert one_rank[-1]["lr"] == pytest.approx(3e-3 * 0.5 * (1 + math.cos(math.pi * 2 / 3)))


RECOMPUTED = {"zero1": "selective", "zero2": "full", "zero3": "selective", "zero3-offload": "full", "fsdp": "offload"}
"""Activation checkpointing, where a strategy's training is to show it; no curve may tell it from the others."""


# docs/decisions/deepspeed.md: The loop calls DeepSpeed's engine itself
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_follows_the_curve_of_one_rank(
    name: str, one_rank: list[dict[str, float]], tmp_path: Path
) -> None:
    recomputed = {"model.activation_checkpointing": RECOMPUTED.get(name, "none")}
    folder = make(tmp_path / name, {**CURVE, **STRATEGIES[name], **recomputed})
    cold = name in STARTED_AS_USERS_DO
    done = run(folder, start=launch if cold else warm.launch)
    assert done.code == 0, done.err
    for mine, theirs in zip(metrics(folder), one_rank, strict=True):
        for field in ("loss", "grad_norm_pre_clip", "weight_norm", "lr", "epoch"):
            assert mine[field] == pytest.approx(theirs[field], rel=1e-4), (name, field, mine["update"])
    assert "The " in done.out, "no text from the trained model"
    assert (folder / "runs" / "latest" / "model" / "model.safetensors").is_file()
    is_as_forecast(folder, "checkpoint_bytes", *(["host_bytes"] if cold else []))


# docs/decisions/deepspeed.md: ZeRO 0 in 16 bit starts with a step that Adam must forget
@pytest.mark.parametrize("name", ["zero0", "zero2", "zero3", "fsdp"])
def test_bf16_stays_near_fp32(name: str, one_rank: list[dict[str, float]], tmp_path: Path) -> None:
    values = {**CURVE, **STRATEGIES[name], "precision.mixed_precision": "bf16", "schedule.n_steps": 3}
    folder = make(tmp_path / name, values)
    done = run(folder)
    assert done.code == 0, done.err
    is_as_forecast(folder, "checkpoint_bytes")
    assert losses(folder) == pytest.approx([r["loss"] for r in one_rank[:3]], rel=2e-3)


SPOILED = """

_loss_sum = loss_sum


def loss_sum(model, batch):
    loss = _loss_sum(model, batch)
    loss_sum.calls += 1
    if loss_sum.calls == {call}:
        loss.register_hook(lambda gradient: gradient * float("nan"))
    return loss


loss_sum.calls = 0
"""
"""A finite loss whose gradient is not."""


# docs/decisions/deepspeed.md: A gradient that is not finite stops a run under DeepSpeed, too
@pytest.mark.parametrize(("name", "update"), [("zero2", 3), ("zero3", 2), ("zero1", 2), ("zero0", 2)])
def test_a_gradient_that_is_not_finite_stops_before_anything_is_saved(name: str, update: int, tmp_path: Path) -> None:
    """DeepSpeed skips such an update in silence; only ZeRO 2 in bf16 takes it, here where a checkpoint is due."""
    values = {**REGRESSION, **STRATEGIES[name], "precision.mixed_precision": "bf16", "data.eval": ""}
    values |= {"tracking.logging_steps": 5, "checkpoint.checkpointing_steps": 3}
    folder = make(tmp_path / "project", values)
    task = folder / "task.py"
    task.write_text(task.read_text() + SPOILED.format(call=2 * update))  # two micro-batches
    done = run(folder)
    assert done.code == 1
    assert f"update {update}: the gradient is nan" in done.err or f"update {update}: the gradient is inf" in done.err
    assert not list((folder / "runs" / "latest").glob("checkpoints/checkpoint-*"))


def test_the_custom_task_trains_in_16_bit_under_deepspeed(tmp_path: Path) -> None:
    values = {**REGRESSION, **STRATEGIES["zero2"], "precision.mixed_precision": "bf16"}
    folder = make(tmp_path / "project", values)
    done = run(folder)
    assert done.code == 0, done.err
    assert losses(folder)[-1] < losses(folder)[0]


def spawn(
    folder: Path,
    ranks: int,
    output: Path,
    overrides: dict[str, object],
    env: dict[str, str] | None = None,
    seconds: float = 120,
) -> int:
    """Run the script's ranks by torch.distributed's contract alone; the worst exit code."""
    arguments = [part for name, value in overrides.items() for part in (f"--{name}", str(value))]
    port = str(claimed.port())
    children = [
        subprocess.Popen(
            [sys.executable, "train.py", "--output_dir", str(output), *arguments],
            cwd=folder,
            env=projects.environment(
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    **(env or {}),
                }
            ),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]
    return max(abs(child.wait(timeout=seconds)) for child in children)


def weights(folder: Path) -> str:
    """The hash of the newest run's final weights."""
    return hashlib.sha256((folder / "runs" / "latest" / "model" / "model.safetensors").read_bytes()).hexdigest()


def wait_for(condition: object, seconds: float = 90) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + seconds * patience()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


HELD = """
import os, time
from pathlib import Path

calls = 0

def hold():
    '''Where the environment says so, rank 1 stays at this call: somebody kills it.'''
    global calls
    calls += 1
    if (os.environ["RANK"], str(calls)) == ("1", os.environ.get("HELD_AT")):
        Path("held").touch()
        time.sleep(600)
"""


def held(folder: Path) -> Path:
    """A project whose rank 1 can be met in an update."""
    task = folder / "task.py"
    source = task.read_text()
    head = source.index("Batch = dict")
    body = source.index("\n", source.index('"""edit', source.index("def loss_sum("))) + 1
    task.write_text(f"{source[:head]}{HELD}\n\n{source[head:body]}    hold()\n{source[body:]}")
    return folder


@pytest.mark.parametrize("name", ["ddp", "zero2", "zero3"])
def test_killed_and_resumed_ends_bit_for_bit_where_it_would_have(name: str, tmp_path: Path) -> None:
    values = {**REGRESSION, **STRATEGIES[name], "schedule.n_steps": 15, "checkpoint.checkpointing_steps": 4}
    folder = held(make(tmp_path / name, values))
    assert run(folder).code == 0
    whole, whole_weights = metrics(folder), weights(folder)

    latest = folder / "runs" / "latest"
    command = warm.command(folder / "train.py", "launch", str(folder))
    if name == "ddp":  # started as users do; the one that it is compared with is not
        command = [sys.executable, "-m", "trainwiz", "launch", str(folder)]
    with subprocess.Popen(
        command,
        env=projects.environment({"HELD_AT": "22"}),  # the second micro-batch of update 11
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as p:
        wait_for((folder / "held").exists)
        os.kill(warm.process(folder, 1), signal.SIGKILL)
        assert p.wait(timeout=180) == 128 + signal.SIGKILL
    outcome = json.loads((latest / "outcome.json").read_text())
    assert outcome["first_failed_rank"] == 1

    done = run(folder, "--resume")
    assert done.code == 0, done.err
    rest = metrics(folder)
    assert [r["update"] for r in rest] == list(range(9, 16))
    assert [r["loss"] for r in rest] == [r["loss"] for r in whole[8:]]
    assert weights(folder) == whole_weights


def test_a_stop_saves_and_the_next_run_goes_on(tmp_path: Path) -> None:
    values = {**REGRESSION, "schedule.n_steps": 100_000, "checkpoint.checkpointing_steps": 0, "data.eval": ""}
    folder = make(tmp_path / "project", values)
    command = warm.command(folder / "train.py", "launch", str(folder))
    latest = folder / "runs" / "latest"
    with subprocess.Popen(
        command, env=projects.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as p:
        wait_for(lambda: (latest / "metrics.jsonl").exists() and len(metrics(folder)) > 5)
        p.send_signal(signal.SIGTERM)
        assert p.wait(timeout=180) == 75
    saved = [path.name for path in (latest / "checkpoints").glob("checkpoint-*")]
    stopped_at = metrics(folder)[-1]["update"]
    assert saved == [f"checkpoint-{stopped_at:08d}"]
    assert not (latest / "model").exists()
    done = run(folder, "--resume", "--", "--n_steps", str(stopped_at + 5))
    assert done.code == 0, done.err
    assert [r["update"] for r in metrics(folder)] == list(range(stopped_at + 1, stopped_at + 6))


def test_rotation_keeps_the_newest_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**REGRESSION, **SINGLE, "checkpoint.checkpoints_total_limit": 2})
    output = tmp_path / "output"
    assert warm.spawn(folder, 1, output, {}) == 0
    kept = sorted(path.name for path in (output / "checkpoints").glob("checkpoint-*"))
    assert kept == ["checkpoint-00000006", "checkpoint-00000008"]
    model = output / "checkpoints" / "checkpoint-00000008" / "model.safetensors"
    damaged = bytearray(model.read_bytes())
    damaged[-1] ^= 1
    model.write_bytes(damaged)
    assert warm.spawn(folder, 1, output, {}) != 0, "an earlier run's folder must not be trained over"
    with (output / "metrics.jsonl").open("a") as file:
        file.write('{"update": 9, "lo')  # torn by a crash
    assert warm.spawn(folder, 1, output, {"resume": "auto"}) == 0
    updates = [json.loads(line)["update"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert updates == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    names = sorted(path.name.partition("-17")[0] for path in (output / "checkpoints").glob("checkpoint-*"))
    assert names == ["checkpoint-00000006", "checkpoint-00000008", "checkpoint-00000008.damaged"]
    assert model.read_bytes() != damaged
    assert warm.spawn(folder, 1, output, {"resume": "auto"}) == 0, "what is finished may be resumed again"
    assert warm.spawn(folder, 1, output, {"resume": "auto", "n_steps": 6}) != 0, "more is done than was asked for"
    assert warm.spawn(folder, 1, output, {"resume": "auto", "n_steps": 9, "n_samples": 99}) != 0, "of other data"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num_processes", "2", "--gradient_accumulation_steps", "2"], "planned for 2 ranks, started with 1"),
        (["--real_batch_size", "20"], "does not hold: the product is 16"),
        (["--learning_rat", "1"], "unrecognized arguments"),
        (["--n_steps", "many"], "invalid int value"),
        (["--n_epochs", "2"], "n_steps 8, n_epochs 2: one of them says how long, and the other is 0"),
        (["--n_steps", "0"], "n_steps 0, n_epochs 0: one of them"),
        (["--n_steps", "-1"], "n_steps -1, n_epochs 0: one of them"),
        (["--real_batch_size", "0", "--gradient_accumulation_steps", "0"], "does not hold: the product is 0"),
        (["--resume", "output/checkpoints/checkpoint-00000003"], "invalid choice"),
        (["--lr_scheduler_type", "cosin"], "invalid choice: 'cosin'"),
        (["--learning_rate", "1e30", "--gradient_clipping", "0"], "the loss is"),
    ],
)
def test_the_script_refuses_what_would_train_wrongly(tmp_path: Path, arguments: list[str], says: str) -> None:
    folder = make(tmp_path / "project", {**REGRESSION, **SINGLE})
    (done,) = warm.run(folder, ["train.py", *arguments])
    assert done.code != 0
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("annotations", ["text", "classes"])
def test_a_custom_task_s_own_switch_is_read_as_true_or_false(tmp_path: Path, annotations: str) -> None:
    """However task.py writes its annotations, `--noisy false` is not the non-empty string."""
    folder = make(tmp_path / "project", {**REGRESSION, **SINGLE})
    task = folder / "task.py"
    text = task.read_text().replace("n_blocks: int = 2", "n_blocks: int = 2\n    noisy: bool = True")
    text = text.replace("0.01 * torch.randn", "(0.01 if config.noisy else 0.0) * torch.randn")
    task.write_text(text if annotations == "text" else text.replace("from __future__ import annotations\n", ""))
    curves = []
    for word in ("true", "False"):
        assert warm.spawn(folder, 1, tmp_path / word, {"noisy": word}) == 0
        lines = (tmp_path / word / "metrics.jsonl").read_text().splitlines()
        curves.append([record["loss"] for record in map(json.loads, lines) if "loss" in record])
    assert curves[0] != curves[1]
    [refused] = warm.run(folder, ["train.py", "--output_dir", str(tmp_path / "no"), "--noisy", "no"], 1)
    assert (refused.code, "argument --noisy: invalid boolean value: 'no'" in refused.err) == (2, True)


def test_only_deepspeed_trains_with_deepspeed_loaded(tmp_path: Path) -> None:
    """Where it is installed, accelerate's own way to the weights of a plain training would import it: a second."""
    folder = make(tmp_path / "project", {**REGRESSION, **SINGLE, "schedule.n_steps": 3})
    code = "import sys, train; train.main(); assert 'deepspeed' not in sys.modules"
    command, env = [sys.executable, "-c", code, "--output_dir", "out"], projects.environment()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "model" / "model.safetensors").is_file()
