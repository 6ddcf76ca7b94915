"""What a rehearsal makes of a plan, of a task's samples and losses, and of the numbers of its runs."""

from typing import Any

import plans
import pytest
from test_rehearse import PLAN, runs, sources

from trainwiz.batch import Batch
from trainwiz.rehearsal import setup, task
from trainwiz.rehearsal.check import Check
from trainwiz.vocabulary import StrategyKind

LOSS: dict[str, Any] = {
    "whole": 6.0,
    "parts": [1.0, 2.0, 3.0],
    "counts": [1, 1, 1],
    "count": 3,
    "finite": True,
    "unkeyed": False,
    "random": False,
    "draws": [],
    "stray_dropout": [],
    "batch_norms": [],
    "half": (3.0, 2),
    "half_meant": (3.0, 2),
    "nothing": (0.0, 0),
    "without_gradient": [],
    "waits": [],
}
GOOD: dict[str, Any] = {
    "length": 99,
    "unfixed_samples": [],
    "unfixed_collate": False,
    "unfixed_weights": False,
    "keyed_samples": False,
    "loss": LOSS,
}


def judged(kind: StrategyKind = "ddp", found: dict[str, Any] | None = None, **loss: object) -> dict[str, Check]:
    told = {**GOOD, **(found or {}), "loss": {**LOSS, **loss}}
    plan = plans.make(strategy__kind=kind, machine__num_processes=2)
    return {check.name: check for check in task.checks(told, plan)}


def test_a_random_loss_is_no_failure() -> None:
    check = judged(random=True, draws=[["randn_like", "task.py:8"], ["randint", "task.py:9"]])["randomness"]
    assert check.verdict == "warning"
    assert "uses random numbers (randn_like at task.py:8, randint at task.py:9)" in str(check.found)
    assert "augment(sample, generator)" in str(check.fix)
    stray = judged(random=True, stray_dropout=[["dropout", "task.py:7"]])["randomness"]
    assert stray.verdict == "failed"
    assert "dropout at task.py:7" in str(stray.found)
    keyed = judged(found={"keyed_samples": True})["randomness"]
    assert keyed.verdict == "passed"
    assert "from its own generator" in str(keyed.found)
    assert judged(found={"unfixed_weights": True}, random=True)["randomness"].verdict == "failed"


def test_a_good_task_passes() -> None:
    assert {name: (check.verdict, check.fix) for name, check in judged().items()} == dict.fromkeys(
        ["samples", "randomness", "summed_loss", "padding", "gradients", "no_waiting"], ("passed", None)
    )


@pytest.mark.parametrize(
    ("found", "name", "words"),
    [
        ({"unfixed_samples": [7, 9]}, "samples", "sample 7 is different each time"),
        ({"unfixed_collate": True}, "samples", "collate gives different results"),
        ({"unfixed_weights": True}, "randomness", "build_model creates different weights"),
    ],
)
def test_what_is_drawn_anew_is_named(found: dict[str, Any], name: str, words: str) -> None:
    check = judged(found=found)[name]
    assert check.verdict == "failed"
    assert words in str(check.found)
    assert check.fix


@pytest.mark.parametrize(
    ("loss", "name", "words"),
    [
        ({"unkeyed": True}, "randomness", "from random or numpy"),
        ({"finite": False}, "summed_loss", "the first loss is 6, before any update"),
        ({"count": 4}, "summed_loss", "collate counts 4 for the samples together, but 3 one by one"),
        ({"whole": 2.0}, "summed_loss", "loss_sum averages: 3 samples give 2 together, 6 one by one"),
        ({"whole": 2.5, "counts": [1, 0, 3], "count": 4}, "summed_loss", "loss_sum averages: 3 samples give 2.5"),
        ({"whole": 5.0, "batch_norms": ["a", "b"]}, "summed_loss", "a, b depends on the whole micro-batch"),
        ({"whole": 5.0}, "summed_loss", "a sample's loss depends on its micro-batch: 3 samples give 5 together"),
        ({"whole": 6.001}, "summed_loss", "depends on its micro-batch"),
        ({"parts": [5.0], "counts": [2], "count": 2}, "summed_loss", "1 samples give 6 together, 5 one by one"),
        ({"half": (3.0, 3)}, "padding", "collate returns a count of 3, expected 2"),
        ({"half": (4.0, 2)}, "padding", "the loss is 4 with them, 3 without"),
        ({"nothing": (1.0, 0)}, "padding", "the loss is 1.0 and the count is 0; both must be 0"),
        ({"nothing": (0.0, 1)}, "padding", "the loss is 0.0 and the count is 1"),
    ],
)
def test_a_wrong_loss_is_named(loss: dict[str, Any], name: str, words: str) -> None:
    checks = judged(**loss)
    assert [each for each, check in checks.items() if check.verdict == "failed"] == [name]
    assert words in str(checks[name].found)
    assert checks[name].fix


def test_sums_in_another_order_are_the_same() -> None:
    assert judged(whole=6.0005)["summed_loss"].verdict == "passed"
    assert judged(half=(-3.0002, 2), half_meant=(-3.0, 2))["padding"].verdict == "passed"


def test_only_ddp_stops_at_a_parameter_without_a_gradient() -> None:
    unused = ["a", "b", "c", "d"]
    assert judged("ddp", without_gradient=unused)["gradients"].verdict == "failed"
    check = judged("fsdp", without_gradient=unused)["gradients"]
    assert check.verdict == "warning"
    assert "parameters without a gradient: 4 (a, b, c)" in str(check.found)


def test_each_wait_is_told_once() -> None:
    check = judged(waits=[["item", "task.py:3"], ["item", "task.py:3"], ["cpu", ""]])["no_waiting"]
    assert (check.verdict, str(check.found)) == ("warning", "loss_sum waits for the device: cpu, item at task.py:3")


def test_a_task_that_stops_says_where() -> None:
    error = {"what": "ValueError: x", "where": "task.py:7"}
    (check,) = task.checks({"stage": "import", "error": error}, PLAN)
    assert str(check.found) == "import failed at task.py:7: ValueError: x"
    assert "run it alone" in str(check.fix)
    (check,) = task.checks({"stage": "loss", "error": {**error, "where": ""}}, PLAN)
    assert (str(check.found), check.fix) == ("loss failed: ValueError: x", None)


# The small copy


FIELDS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "sequence_length": 32,
    "num_workers": 4,
    "n_steps": 1000,
    "n_epochs": 0,
    "learning_rate": 0.1,
    "compile": True,
    "loss_chunk": None,
}


def copied(by_hand: dict[str, str] | None = None, updates: int = 6, **changes: Any) -> setup.Setup:
    plan = plans.make(**{"strategy__kind": "ddp", "machine__num_processes": 2, **changes})
    return setup.small_copy(plan, FIELDS, by_hand=by_hand or {}, updates=updates)


def test_a_large_model_is_made_small_and_keeps_its_kind_of_attention() -> None:
    assert copied().values == {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "sequence_length": 32,
        "num_workers": 1,
        "n_steps": 6,
        "n_epochs": 0,
        "compile": False,
    }
    equal = setup.small_copy(PLAN, {**FIELDS, "num_key_value_heads": 32}, by_hand={})
    assert equal.values["num_key_value_heads"] == 4
    small = setup.small_copy(PLAN, {"hidden_size": 64, "num_attention_heads": 2}, by_hand={})
    assert small.values == {}


def test_what_is_frozen_is_rehearsed_in_the_precision_that_losses_are_compared_in() -> None:
    """Layers whose frozen weights have 16 bits answer in 16 bits, which no loss would repeat to 1e-5."""
    fields = {"frozen_dtype": "bfloat16", "mixed_precision": "bf16"}
    for stage, frozen in ((2, "float32"), (0, None)):
        values = {"strategy__kind": "deepspeed", "strategy__zero_stage": stage, "precision__mixed_precision": "bf16"}
        small = setup.small_copy(plans.make(**values), fields, by_hand={})
        assert small.values.get("frozen_dtype") == frozen
        assert small.values["mixed_precision"] == ("no" if frozen else "bf16")


def test_a_custom_task_keeps_its_sizes() -> None:
    custom = copied(task="custom")
    assert custom.values == {"num_workers": 1, "n_steps": 6, "n_epochs": 0, "compile": False}
    assert "at its own size" in str(custom.notes[-1])


def test_the_batch_is_cut_in_two_ways() -> None:
    two = copied()
    assert (two.main, two.other) == (
        Batch(world=2, micro=2, accumulation=2),
        Batch(world=1, micro=1, accumulation=8),
    )
    assert (two.real_batch, two.samples, two.updates_per_epoch) == (8, 21, 3)
    one = copied(strategy__kind="single", machine__num_processes=1)
    assert (one.main, one.other) == (
        Batch(world=1, micro=2, accumulation=4),
        Batch(world=2, micro=1, accumulation=4),
    )
    assert one.notes == ()


def test_every_rank_is_killed_in_the_last_update_before_it_ends() -> None:
    """Update 6 is micro-batches 11 and 12 of 2 each."""
    killed = {run.name: run.killed_at for run in copied().runs()}
    assert killed == {"whole": 0, "killed": 12, "resumed": 0, "split": 0}
    assert copied(updates=4).runs()[1].killed_at == 8
    assert [run.without_dropout for run in copied().runs()] == [False, False, False, True]
    assert copied().run_without_dropout().without_dropout


def test_what_the_ranks_are_told() -> None:
    small = copied(by_hand={"hidden_size": "32"})
    arguments = small.arguments(small.runs()[2], "out")
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given["--compile"] == "false"
    assert given["--resume"] == "auto"
    assert given["--n_steps"] == "6"
    assert given["--hidden_size"] == "32"
    assert (given["--num_processes"], given["--real_batch_size"]) == ("2", "8")
    assert (given["--per_device_batch_size"], given["--gradient_accumulation_steps"]) == ("2", "2")
    assert small.arguments(small.runs()[0], "out")[arguments.index("--resume") + 1] == "none"


def test_what_differs_from_the_plan_is_said() -> None:
    notes = copied(precision__mixed_precision="bf16", machine__num_processes=8).notes
    assert [str(note) for note in notes] == ["planned in bf16, rehearsed in fp32", "planned ranks: 8, rehearsed: 2"]
    assert copied().notes == ()
    zero0 = {"strategy__kind": "deepspeed", "strategy__zero_stage": 0, "precision__mixed_precision": "fp16"}
    half = copied(**zero0)
    assert [str(note) for note in half.notes] == ["planned in fp16, rehearsed in bf16"]
    assert half.plan.precision.mixed_precision == "bf16"


def test_fields_are_those_of_both_classes_with_their_literals() -> None:
    config = "class Config:\n    a: int = 3\n    b: float = 1 / 3\n    c: str\nclass Other:\n    d: int = 4\n"
    assert setup.declared_fields({"train.py": config, "task.py": "class TaskConfig:\n    e: bool = True\n"}) == {
        "a": 3,
        "b": None,
        "e": True,
    }
    assert setup.declared_fields(sources())["hidden_size"] == 128


# The runs


def test_good_runs_are_told_with_their_numbers() -> None:
    said = {name: str(check.found) for name, check in runs().items()}
    assert said == {
        "training": "ranks: 2, updates: 6 of 8 samples, loss 3 to 0.5",
        "once_per_epoch": "samples: 21, epochs: 2, each sample used once per epoch",
        "communication": "each update sends one gradient: 100 of 100 bytes; micro-batches: 2",
        "checkpoints": "complete and match their manifests: checkpoint-00000004, checkpoint-00000006",
        "resume": "killed at update 6, resumed from 4: the final weights are identical, abc",
        "split": "2 × 2 × ranks 2 and 1 × 8 × ranks 1: losses differ by at most 0.0e+00",
    }


@pytest.mark.parametrize(
    ("run", "changes", "name", "words"),
    [
        ("whole", {"exit_code": 3}, "run_whole", "exit code 3: no cause found in its log"),
        ("whole", {"damaged": ["checkpoint-00000004"]}, "checkpoints", "do not match their manifests: checkpoint-0"),
        ("whole", {"checkpoints": []}, "checkpoints", "checkpoint-00000006 is missing; found: -"),
        ("whole", {"weights": ""}, "checkpoints", "the final weights were not written to model/"),
        ("resumed", {"weights": "abd"}, "resume", "the losses are identical but the final weights differ"),
        ("resumed", {"notes": [{"micro_batches": 8}]}, "resume", "resumed from 2 instead of 4"),
        ("resumed", {"records": [{"update": 6, "loss": 0.51}]}, "resume", "loss at update 6: 0.51 after resuming, 0.5"),
    ],
)
def test_what_is_wrong_is_said_with_its_numbers(run: str, changes: dict[str, Any], name: str, words: str) -> None:
    check = runs(**{run: changes})[name]
    assert check.verdict == "failed"
    assert words in str(check.found), str(check.found)


@pytest.mark.parametrize(("apart", "verdict"), [(0.9e-5, "passed"), (1.1e-5, "failed")])
def test_losses_of_two_splits_may_differ_by_rounding(apart: float, verdict: str) -> None:
    records = [{"update": u, "loss": 3.0 / u * (1 + apart * (u == 3))} for u in range(1, 7)]
    assert runs(split={"records": records})["split"].verdict == verdict


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([{"update": 6, "eval_loss": 2.0}], "passed"),
        ([{"update": 6, "eval_loss": 2.00019}], "passed"),
        ([{"update": 6, "eval_loss": 2.0003}], "failed"),
        ([{"update": 3, "eval_loss": 2.0}, {"update": 6, "eval_loss": 2.0}], "failed"),
    ],
)
def test_evaluations_of_two_splits_are_compared(other: list[dict[str, float]], verdict: str) -> None:
    losses = [{"update": u, "loss": 3.0 / u} for u in range(1, 7)]
    checks = runs(whole={"records": [*losses, {"update": 6, "eval_loss": 2.0}]}, split={"records": [*losses, *other]})
    assert checks["evaluation"].verdict == verdict
    assert "eval_loss" in str(checks["evaluation"].found)
