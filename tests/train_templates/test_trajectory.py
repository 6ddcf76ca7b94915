"""What no split of the real batch changes: losses, rates, which samples count, and the bytes that ranks send."""

import importlib.util
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warm
from projects import CLOCKED, REGRESSION, make
from test_tasks import load
from transformers import optimization

pytestmark = pytest.mark.train

CHILD = Path(__file__).parents[1] / "engine_children" / "many_runs.py"
REAL = 8
SPLITS = [(ranks, micro) for ranks in (1, 2, 4) for micro in (1, 2, 4, 8) if ranks * micro <= REAL]
"""Every way to cut 8 samples over 1, 2 and 4 ranks."""
SAMPLES, PER_EPOCH = 21, 3
"""Two real batches and 5 samples; on 4 ranks some of them have nothing at all in the last one."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("trajectory") / "project", REGRESSION)


@pytest.fixture(scope="module")
def without_evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("trajectory") / "project", {**REGRESSION, "data.eval": ""})


def many(project: Path, runs: list[dict[str, Any]], folder: Path, timeout: float = 300) -> list[dict[str, Any]]:
    """Run them one after the other; the exit codes and notes of each."""
    (folder / "runs.json").write_text(json.dumps(runs))
    done = warm.child(CHILD, str(project), str(folder / "runs.json"), seconds=timeout)
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])  # type: ignore[no-any-return]


def run(output: Path, ranks: int, micro: int, **arguments: object) -> dict[str, Any]:
    cut = {"per_device_batch_size": micro, "gradient_accumulation_steps": REAL // ranks // micro}
    steady = {"real_batch_size": REAL, "n_samples": SAMPLES, "checkpointing_steps": 0, "logging_steps": 1}
    return {"ranks": ranks, "output": str(output), "arguments": {**steady, **cut, **arguments}}


def records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_every_split_over_1_2_and_4_ranks_follows_one_curve(project: Path, tmp_path: Path) -> None:
    """Two whole epochs with their tails; bytes per update are those of one gradient, whatever the accumulation."""
    long = {"n_steps": 0, "n_epochs": 2, "n_warmup_steps": 2}
    runs = [{**run(tmp_path / f"{r}-{m}", r, m, **long), "sent": True} for r, m in SPLITS]
    ended = many(project, runs, tmp_path)
    assert [set(end["codes"]) for end in ended] == [{0}] * len(SPLITS)
    first = records(tmp_path / "1-1")
    assert [r["update"] for r in first if "loss" in r] == list(range(1, 2 * PER_EPOCH + 1))
    assert [r["update"] for r in first if "eval_loss" in r] == [PER_EPOCH, 2 * PER_EPOCH]
    for ranks, micro in SPLITS:
        for mine, theirs in zip(records(tmp_path / f"{ranks}-{micro}"), first, strict=True):
            for name in theirs.keys() - CLOCKED:
                assert mine[name] == pytest.approx(theirs[name], rel=1e-5), (ranks, micro, name, mine["update"])
    several = [(split, end) for split, end in zip(SPLITS, ended, strict=True) if split[0] > 1]
    assert several
    for split, end in several:
        for note in end["notes"]:
            once = {str(update): note["gradient"] for update in range(2 * PER_EPOCH)}
            assert note["sent"] == {**once, "0": 3 * note["gradient"]}, split  # buckets.py sends two more before


KINDS = ("cosine", "linear", "constant")
LENGTHS = {"steps": {"n_steps": 7, "n_epochs": 0}, "epochs": {"n_steps": 0, "n_epochs": 3}}


# docs/decisions/loop.md: The learning rate is a function of the update, not a scheduler object
def test_the_rate_warms_up_and_ends_with_the_training(without_evaluation: Path, tmp_path: Path) -> None:
    """For steps and epochs, worlds and accumulations: the same rates, the last update the last before the floor."""
    cases = [("cosine", ranks, micro) for ranks, micro in ((1, 8), (1, 2), (2, 1), (4, 2))]
    cases += [(kind, 2, 2) for kind in KINDS]
    runs = {}
    for name, length in LENGTHS.items():
        for kind, ranks, micro in cases:
            key = (kind, name, ranks, micro)
            planned = {**length, "n_warmup_steps": 3, "lr_scheduler_type": kind, "learning_rate": 0.01}
            runs[key] = run(tmp_path / "-".join(map(str, key)), ranks, micro, **planned)
    ended = many(without_evaluation, list(runs.values()), tmp_path)
    assert {code for end in ended for code in end["codes"]} == {0}
    rate_of = generated(without_evaluation, "train").learning_rate
    for (kind, name, *_), made in runs.items():
        total = LENGTHS[name]["n_steps"] or 3 * PER_EPOCH
        floor = {"constant": 0.01}.get(kind, 0.0)
        rates = [r["lr"] for r in records(Path(made["output"])) if "loss" in r]
        assert len(rates) == total
        assert rates[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
        assert rates[2] == max(rates) == 0.01
        assert all(a >= b >= floor for a, b in pairwise(rates[3:]))
        assert kind == "constant" or rates[-1] > floor
        planned = {**LENGTHS[name], "n_warmup_steps": 3, "lr_scheduler_type": kind, "learning_rate": 0.01}
        assert rate_of(config(without_evaluation, **planned), total, total) == floor


# docs/decisions/loop.md: The learning rate reaches 0 after the last update, not at it
def test_no_rate_is_ever_below_its_floor(project: Path) -> None:
    train = generated(project, "train")
    looked_at = 0
    for total in (1, 2, 3, 10, 97):
        for warmup in {0, 1, 2, total // 2, total - 1} & set(range(total)):
            for kind in ("cosine", "linear", "constant"):
                settings = config(project, n_warmup_steps=warmup, lr_scheduler_type=kind, learning_rate=1.0)
                rates = [train.learning_rate(settings, update, total) for update in range(total + 1)]
                assert min(rates[:total]) > 0
                assert max(rates) == 1.0 == rates[max(0, warmup - 1)]
                assert rates[total] == (1.0 if kind == "constant" else 0.0), (total, warmup, kind)
                assert all(a < b for a, b in pairwise(rates[:warmup]))
                assert all(a >= b for a, b in pairwise(rates[warmup:]))
                looked_at += 1
    assert looked_at > 30


LENGTH = 97
CURVES: dict[str, tuple[dict[str, Any], Callable[..., float], dict[str, Any]]] = {
    "cosine with a floor": (
        {"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1},
        optimization._get_cosine_schedule_with_warmup_lr_lambda,
        {"num_training_steps": LENGTH, "num_cycles": 0.5, "min_lr_rate": 0.1},
    ),
    "linear": (
        {"lr_scheduler_type": "linear"},
        optimization._get_linear_schedule_with_warmup_lr_lambda,
        {"num_training_steps": LENGTH},
    ),
    "polynomial": (
        {"lr_scheduler_type": "polynomial", "polynomial_power": 2.0, "min_lr_ratio": 0.01},
        optimization._get_polynomial_decay_schedule_with_warmup_lr_lambda,
        {"num_training_steps": LENGTH, "lr_end": 0.01, "power": 2.0, "lr_init": 1.0},
    ),
    **{
        f"wsd {course}": (
            {"lr_scheduler_type": "wsd", "decay_type": course, "decay_ratio": 0.2, "min_lr_ratio": 0.05},
            optimization._get_wsd_scheduler_lambda,
            {
                "num_stable_steps": LENGTH - 20 - 10,
                "num_decay_steps": 20,
                "warmup_type": "linear",
                "decay_type": course,
                "min_lr_ratio": 0.05,
                "num_cycles": 0.5,
            },
        )
        for course in ("linear", "cosine", "1-sqrt")
    },
}
"""Ours, transformers' own function, and what it is given; a warm-up of 10 updates of 97, a decay of ceil(19.4)."""


@pytest.mark.parametrize("name", CURVES)
def test_each_curve_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """Theirs has a rate of 0 at its first update; ours is the same warm-up one update on."""
    ours, theirs, given = CURVES[name]
    train = load(tmp_path, "custom", "train", schedule__lr_scheduler_type="wsd")
    for warmup in ({"n_warmup_steps": 10}, {"n_warmup_steps": 0, "warmup_ratio": 0.1}):
        config = train.Config(learning_rate=1.0, **ours, **warmup)
        rates = [train.learning_rate(config, update, LENGTH) for update in range(LENGTH + 1)]
        wanted = [theirs(update, num_warmup_steps=10, **given) for update in range(LENGTH + 1)]
        assert rates[10:] == pytest.approx(wanted[10:], abs=1e-12)
        assert rates[:10] == pytest.approx([(update + 1) / 10 for update in range(10)])
        assert rates[LENGTH] == pytest.approx(ours.get("min_lr_ratio", 0.0))


def test_phases_that_overlap_or_take_everything_never_leave_their_bounds(tmp_path: Path) -> None:
    train = load(tmp_path, "custom", "train", schedule__lr_scheduler_type="wsd")
    looked_at = 0
    for total, warmup, decay in itertools.product((1, 2, 3, 10), (0.0, 0.5, 0.99), (0.01, 0.5, 1.0)):
        config = train.Config(
            learning_rate=1.0, lr_scheduler_type="wsd", n_warmup_steps=0, warmup_ratio=warmup, decay_ratio=decay
        )
        rates = [train.learning_rate(config, update, total) for update in range(total)]
        assert min(rates) > 0
        assert max(rates) == 1.0
        looked_at += 1
    assert looked_at == 36


def test_every_sample_counts_once_per_epoch_whatever_the_ranks(project: Path) -> None:
    batches = generated(project, "batches")
    looked_at = 0
    for length in (1, 7, 8, 21, 64):
        for ranks in (1, 2, 4, 8):
            for micro in (m for m in (1, 2, 4, 8) if ranks * m <= REAL):
                settings = config(
                    project,
                    real_batch_size=REAL,
                    num_processes=ranks,
                    per_device_batch_size=micro,
                    gradient_accumulation_steps=REAL // ranks // micro,
                )
                per_epoch = -(-length // REAL)
                taken = [list(batches.RealBatches(settings, length, rank, 0, 2 * per_epoch)) for rank in range(ranks)]
                for epoch in (0, 1):
                    steps = slice(
                        epoch * per_epoch * (REAL // ranks // micro), (epoch + 1) * per_epoch * (REAL // ranks // micro)
                    )
                    times = Counter(i for rank in taken for batch in rank[steps] for i, _ in batch if i >= 0)
                    assert times == Counter(range(length)), (length, ranks, micro)
                looked_at += 1
    assert looked_at == 50


def test_what_cannot_be_trained_ends_clearly(project: Path, tmp_path: Path) -> None:
    """Loss or gradient no number, also where only a checkpoint is due; nothing that counts; no data; another world."""
    cases = {
        "loss": ({"poison": "loss"}, "update 2: the loss is nan; the newest checkpoint is from before"),
        "infinite": ({"poison": "infinite"}, "update 2: the loss is inf; the newest checkpoint is from before"),
        "gradient": ({"poison": "gradient"}, "update 2: the gradient is nan; the newest checkpoint is from before"),
        "count": ({"poison": "count"}, "update 1: nothing in the real batch counts; look at collate in task.py"),
        "empty": ({"n_samples": 0}, "the training data is empty; look at load_train_data in task.py"),
        "world": ({"num_processes": 4, "real_batch_size": 16}, "planned for 4 ranks, started with 2"),
    }
    folder = poisoned(project, tmp_path / "project")
    base = {"checkpointing_steps": 1, "logging_steps": 100, "n_steps": 4, "n_warmup_steps": 0}
    runs = [run(tmp_path / name, 2, 2, **{**base, **changes}) for name, (changes, _) in cases.items()]
    for end, (name, (_, words)) in zip(many(folder, runs, tmp_path), cases.items(), strict=True):
        assert 0 not in end["codes"], name
        said = (tmp_path / name / "rank-0.log").read_text()
        assert words in said, said
        assert "Traceback" not in said
        saved = [path.name for path in (tmp_path / name).glob("checkpoints/checkpoint-????????")]
        assert saved == (["checkpoint-00000001"] if name in ("loss", "infinite", "gradient") else []), name


def test_a_rank_without_data_changes_nothing(without_evaluation: Path, tmp_path: Path) -> None:
    """One sample for 4 ranks: three of them learn from nothing, and the update is that of one rank."""
    runs = [run(tmp_path / str(ranks), ranks, 2, n_samples=1, n_steps=3, n_warmup_steps=0) for ranks in (1, 4)]
    assert {code for end in many(without_evaluation, runs, tmp_path) for code in end["codes"]} == {0}
    one, four = ([r["loss"] for r in records(tmp_path / name) if "loss" in r] for name in ("1", "4"))
    assert four == pytest.approx(one, rel=1e-5)
    assert all(map(math.isfinite, four))


POISON = '''

_loss_sum, _collate, _taken = loss_sum, collate, []


def loss_sum(model, batch):
    """As before for update 1; in update 2 what `poison` asks for. (Two micro-batches make an update.)"""
    if torch.is_grad_enabled():
        _taken.append(1)
    loss = _loss_sum(model, batch)
    if len(_taken) != 3:
        return loss
    if POISON == "gradient":
        return loss + (loss * 0).sqrt()
    return loss * {"loss": float("nan"), "infinite": float("inf")}.get(POISON, 1.0)


def collate(samples, counted):
    batch, count = _collate(samples, counted)
    return batch, 0 if POISON == "count" else count


POISON = ""


def load_train_data(config):
    global POISON
    POISON = config.poison
    return Regression(config, config.n_samples, seed=0)
'''


def poisoned(project: Path, into: Path) -> Path:
    """The project with a task that goes wrong in its second update."""
    into.mkdir()
    for file in project.iterdir():
        if file.is_file():
            (into / file.name).write_bytes(file.read_bytes())
    text = (
        (into / "task.py")
        .read_text()
        .replace("    n_blocks: int = 2\n", '    n_blocks: int = 2\n    poison: str = ""\n')
    )
    (into / "task.py").write_text(text + POISON)
    return into


def generated(project: Path, name: str) -> ModuleType:
    """A module of the project; the task that it imports is the project's."""
    sys.path.insert(0, str(project))
    try:
        for module in ("task", "batches", "checkpoints", "train"):
            sys.modules.pop(module, None)
        spec = importlib.util.spec_from_file_location(name, project / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module_made = importlib.util.module_from_spec(spec)
        sys.modules[name] = module_made  # its dataclass asks for the module that it is in
        spec.loader.exec_module(module_made)
        return module_made
    finally:
        sys.path.remove(str(project))


def config(project: Path, **values: object) -> Any:
    return generated(project, "train").Config(**values)
