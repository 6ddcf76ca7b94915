"""Which changes of a plan must not matter, and whether two small trainings show that they do not."""

import json
import sys
from pathlib import Path
from typing import Any

import plans
import projects
import pytest
import warm

from trainwiz import plan as trainwiz_plan
from trainwiz.batch import Batch
from trainwiz.cli import run
from trainwiz.message import say
from trainwiz.plan import flat
from trainwiz.rehearsal import equivalence, setup
from trainwiz.rehearsal.check import Check
from trainwiz.rehearsal.equivalence import Change
from trainwiz.rehearsal.result import RunResult
from trainwiz.workflows.create.update_proof import Proof

DECIDE = (
    *("task", "seed", "deepspeed", "model.name", "model.adapter", "model.frozen", "model.neftune_alpha"),
    *("data.train", "data.packing", "data.max_rows", "batch.real_batch_size", "batch.sequence_length"),
    *("optimizer.learning_rate", "optimizer.name", "schedule.n_steps", "precision.mixed_precision"),
    *("precision.weights", "preference.beta", "evaluation.patience"),
)
DO_NOT = (
    *("strategy.kind", "strategy.zero_stage", "strategy.offload_param_device", "machine.num_processes", "engine"),
    *("batch.per_device_batch_size", "batch.gradient_accumulation_steps", "model.activation_checkpointing"),
    *("model.attention", "model.kernels", "model.loss_chunk"),
    *("checkpoint.checkpointing_steps", "tracking.tags", "supervision.on_hang", "cluster.kind", "data.cache_dir"),
)
_MACHINE = ("machine.device", "machine.num_processes")


def test_each_key_either_decides_or_does_not() -> None:
    values = flat(plans.make())
    assert set(DECIDE) | set(DO_NOT) <= set(trainwiz_plan.fields())
    for key in DECIDE:
        assert equivalence.change(values, {**values, key: object()}) == Change(decisive=(key,))
    for key in DO_NOT:
        assert equivalence.change(values, {**values, key: object()}) == Change(neutral=(key,))
    assert equivalence.change(values, values) == Change()
    compiled = equivalence.change(values, {**values, "model.compile": object(), "machine.device": object()})
    assert set(compiled.unseen) == {"model.compile", "machine.device"}
    # A new strategy moves the length of the loss's pieces, which a rehearsal sets itself.
    moved = equivalence.change(values, {**values, "strategy.kind": object(), "model.loss_chunk": object()})
    assert (moved.decisive, moved.unseen) == ((), ("model.loss_chunk",))


@pytest.mark.parametrize(
    ("keys", "world", "micro"),
    [
        (("strategy.zero_stage",), 2, 2),
        (("batch.per_device_batch_size",), 2, 1),
        (("machine.num_processes",), 1, 1),
        (("machine.num_processes", "strategy.kind"), 2, 1),
    ],
)
def test_a_new_strategy_is_seen_on_two_ranks(keys: tuple[str, ...], world: int, micro: int) -> None:
    small = _small("ddp")
    before, after = equivalence.runs(small, small, Change(neutral=keys))
    assert before.split == small.main == Batch(world=2, micro=2, accumulation=2)
    assert (after.split.world, after.split.micro, after.split.real) == (world, micro, before.split.real)
    assert before.without_dropout
    assert after.without_dropout


@pytest.mark.parametrize(("ranks", "unseen"), [([1, 2], ("machine.device",)), ([2, 2], _MACHINE)])
def test_runs_on_one_rank_and_on_two_show_the_number_of_ranks(ranks: list[int], unseen: tuple[str, ...]) -> None:
    check = Check(name="proof", title=say(""), verdict="passed", found=say(""), numbers={"ranks": ranks})
    assert Proof(change=Change(neutral=_MACHINE), check=check).unseen == unseen
    assert Proof(change=Change(neutral=_MACHINE)).unseen == _MACHINE


def _small(kind: Any) -> setup.Setup:
    return setup.small_copy(plans.make(strategy__kind=kind, machine__num_processes=2), {}, by_hand={}, updates=2)


def _ended(name: int, losses: list[float], norms: list[float], code: int = 0) -> RunResult:
    small = _small("ddp")
    records = [
        {"update": i, "loss": loss, "grad_norm_pre_clip": norm}
        for i, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1)
    ]
    planned = equivalence.runs(small, small, Change())[name]
    return RunResult(run=planned, exit_code=code, seconds=1.0, records=records, log="rank-0.log")


@pytest.mark.parametrize(
    ("losses", "norms", "code", "verdict", "words"),
    [
        ([2.0, 1.0], [1.0, 1.0], 0, "passed", "over 2 updates the losses differ by at most 0.0e+00"),
        ([2.0, 1.000001], [1.0, 1.00005], 0, "passed", "gradient norms by 5.0e-05"),
        ([2.0, 1.0001], [1.0, 1.0], 0, "failed", "by at most 1.0e-04"),
        ([2.0, 1.0], [1.0, 1.001], 0, "failed", "gradient norms by 1.0e-03"),
        ([2.0], [1.0], 0, "failed", "over 1 updates"),
        ([], [], 0, "failed", "over 0 updates"),
        ([2.0, float("nan")], [1.0, 1.0], 0, "failed", "inf"),
        ([2.0, 1.0], [1.0, 1.0], 1, "failed", "after the update: exit code 1"),
    ],
)
def test_the_check(losses: list[float], norms: list[float], code: int, verdict: str, words: str) -> None:
    small = _small("ddp")
    found = equivalence.check(_ended(0, [2.0, 1.0], [1.0, 1.0]), _ended(1, losses, norms, code), (small, small))
    assert (found.verdict, bool(found.fix)) == (verdict, verdict == "failed")
    assert words in str(found.found)


def test_what_did_not_train_is_not_called_different() -> None:
    small = _small("ddp")
    good, ended = _ended(0, [2.0, 1.0], [1.0, 1.0]), _ended(1, [2.0, 1.0], [1.0, 1.0], 1)
    lacking = Check(name="small_model", title=say(""), verdict="failed", found=say("no connection"))
    assert Proof(change=Change(), check=equivalence.check(good, good, (small, small))).compared
    assert not Proof(change=Change(), check=equivalence.check(good, ended, (small, small))).compared
    assert not Proof(change=Change(), check=lacking).compared


def test_a_proof_without_its_model_is_refused_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    values = {"task": "sft", "model.name": "org/nowhere", "model.from_scratch": False, "model.parameters": "10M"}
    ignored = {"TW514": "there is no network in a test"}
    project = projects.make(tmp_path / "p", {**projects.SMALL, **values, "ignore": ignored})
    monkeypatch.setattr(sys, "executable", warm.python())
    before = (project / "trainwiz.yaml").read_text()
    words = ["update", str(project), "--set", "batch.per_device_batch_size=2", "--set", "batch.real_batch_size=16"]
    assert run([*words, "--prove"]) == 1
    assert "the proof could not be made; nothing was written" in capsys.readouterr().err
    assert (project / "trainwiz.yaml").read_text() == before


def test_an_update_is_proved_before_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cut of the batch: a loss that depends on the micro-batch is found, and nothing is written."""
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    project = projects.make(tmp_path / "p", {**projects.REGRESSION, "data.eval": ""})
    monkeypatch.setattr(sys, "executable", warm.python())
    task = project / "task.py"
    good = task.read_text()
    start = good.index("return", good.index("def loss_sum"))
    line = good[start : good.index("\n", start)]
    expression = line.removeprefix("return ")
    task.write_text(good.replace(line, f"return ({expression}) * len(next(iter(batch.values())))"))
    words = ["update", str(project), "--set", "batch.per_device_batch_size=2", "--set", "batch.real_batch_size=16"]
    before = (project / "trainwiz.yaml").read_text()
    assert run([*words, "--prove"]) == 1
    assert "the files would train differently than before; nothing was written" in capsys.readouterr().err
    assert (project / "trainwiz.yaml").read_text() == before
    task.write_text(good)
    assert run([*words, "--prove", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["proof"]
    assert set(found["neutral"]) == {"batch.per_device_batch_size", "batch.gradient_accumulation_steps"}
    assert found["check"]["verdict"] == "passed"
    assert "2 × 2 × ranks 2 and ddp, 1 × 4 × ranks 2" in found["check"]["found"]
    assert "per_device_batch_size: 2" in (project / "trainwiz.yaml").read_text()
    # What matters is named, nothing is trained, and nothing is written, unless that is asked for.
    before, words = (
        (project / "trainwiz.yaml").read_text(),
        ["update", str(project), "--set", "optimizer.learning_rate=0.01"],
    )
    assert run([*words, "--prove"]) == 1
    said = capsys.readouterr().err
    assert "no proof: the update changes the training (optimizer.learning_rate); nothing was written" in said
    assert "to write them anyway, update without --prove" in said
    assert (project / "trainwiz.yaml").read_text() == before
    assert run(words) == 0
    assert "learning_rate: 0.01" in (project / "trainwiz.yaml").read_text()
