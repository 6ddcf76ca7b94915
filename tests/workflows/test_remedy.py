"""Changes of a plan that fix a failure: solved, checked, written in place, launched."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from plans import BASE
from projects import REGRESSION, losses, make, trainwiz
from warm import launch

from trainwiz import plan as plans
from trainwiz.diagnose import SIGNATURES
from trainwiz.diagnose.endings import BY_CODE
from trainwiz.diagnose.plan_changes import PlanChange, candidates
from trainwiz.errors import UsageError
from trainwiz.machine import Gpu, Machine
from trainwiz.store import plans as files


def changes(kind: str, **values: object) -> list[dict[str, object]]:
    changed = plans.with_changes(BASE, {key.replace("__", "."): value for key, value in values.items()})
    return [dict(change.changes) for change in candidates(kind, changed)]


ALONE = {**REGRESSION, "strategy.kind": "single", "machine.num_processes": 1}
BATCH_64 = {
    "machine__num_processes": 4,
    "batch__real_batch_size": 64,
    "batch__per_device_batch_size": 8,
    "batch__gradient_accumulation_steps": 2,
}


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_real_batch() -> None:
    first = changes("smaller_micro_batch", **BATCH_64)[0]
    assert first == {"batch.per_device_batch_size": 4, "batch.gradient_accumulation_steps": 4}
    odd = {
        **BATCH_64,
        "batch__real_batch_size": 60,
        "batch__per_device_batch_size": 15,
        "batch__gradient_accumulation_steps": 1,
    }
    assert changes("smaller_micro_batch", **odd)[0] == {
        "batch.per_device_batch_size": 5,
        "batch.gradient_accumulation_steps": 3,
    }


def test_a_micro_batch_of_one_leaves_sharding_then_offload_then_nothing() -> None:
    one = {**BATCH_64, "batch__per_device_batch_size": 1, "batch__gradient_accumulation_steps": 16}
    assert changes("smaller_micro_batch", **one) == []
    zero = {**one, "strategy__kind": "deepspeed", "strategy__zero_stage": 2}
    assert changes("smaller_micro_batch", **zero) == [
        {"strategy.zero_stage": 3},
        {"strategy.offload_optimizer_device": "cpu"},
    ]
    last = {**zero, "strategy__zero_stage": 3, "strategy__offload_optimizer_device": "cpu"}
    assert changes("smaller_micro_batch", **last) == []


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("fewer_workers", {"data__num_workers": 4}, [{"data.num_workers": 0}]),
        ("fewer_workers", {"data__num_workers": 0}, []),
        ("bf16", {"precision__mixed_precision": "fp16"}, [{"precision.mixed_precision": "bf16"}]),
        ("bf16", {"precision__mixed_precision": "no"}, []),
        ("any_port", {"machine__main_process_port": 29500}, [{"machine.main_process_port": 0}]),
        ("any_port", {"machine__num_machines": 2, "machine__num_processes": 4}, []),
        ("fewer_checkpoints", {"checkpoint__checkpoints_total_limit": 5}, [{"checkpoint.checkpoints_total_limit": 2}]),
        ("fewer_checkpoints", {"checkpoint__checkpoints_total_limit": 2}, []),
        ("offload_to_cpu", {"strategy__offload_param_device": "nvme"}, [{"strategy.offload_param_device": "cpu"}]),
        ("", {}, []),
    ],
)
def test_what_else_a_plan_can_change(kind: str, values: dict[str, object], expected: object) -> None:
    assert changes(kind, **values) == expected


def test_every_kind_that_a_signature_names_is_known() -> None:
    named = {signature.plan_change for signature in (*SIGNATURES, *BY_CODE.values())} - {""}
    assert len(named) >= 6
    rich = plans.with_changes(
        BASE,
        {
            "data.num_workers": 2,
            "precision.mixed_precision": "fp16",
            "strategy.offload_param_device": "nvme",
            "checkpoint.checkpoints_total_limit": 9,
            "machine.main_process_port": 1,
            "batch.per_device_batch_size": 8,
            "batch.real_batch_size": 32,
            "batch.gradient_accumulation_steps": 4,
            "machine.num_processes": 1,
        },
    )
    for kind in named:
        found = list(candidates(kind, rich))
        assert found, kind
        assert all(isinstance(change, PlanChange) and plans.with_changes(rich, change.changes) for change in found)


# --- the plan's text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "batch:\n  per_device_batch_size: 8  # found\n  real_batch_size: 32 # mine\n",
            "batch:\n  per_device_batch_size: 4  # why\n  real_batch_size: 32 # mine\n",
        ),
        ("seed: 1\n", "seed: 1\nbatch:\n  per_device_batch_size: 4  # why\n"),
        ("batch:\n    sequence_length: 64\n", "batch:\n    sequence_length: 64\n    per_device_batch_size: 4  # why\n"),
        (
            "batch: {per_device_batch_size: 8, sequence_length: 64}\n",
            "batch: {per_device_batch_size: 4, sequence_length: 64}\n",
        ),
        ("batch: {sequence_length: 64}\n", "batch: {sequence_length: 64, per_device_batch_size: 4}\n"),
        (
            "\ufeffbatch:\r\n  per_device_batch_size: 8  # found\r\n",
            "\ufeffbatch:\r\n  per_device_batch_size: 4  # why\r\n",
        ),
        (
            "batch:\r\n  sequence_length: 64\r\n",
            "batch:\r\n  sequence_length: 64\r\n  per_device_batch_size: 4  # why\r\n",
        ),
        ("batch:\n  per_device_batch_size: 8", "batch:\n  per_device_batch_size: 4  # why"),
    ],
)
def test_a_plan_is_changed_where_it_stands(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "trainwiz.yaml"
    file.write_bytes(before.encode())
    assert files.edited(file, {"batch.per_device_batch_size": 4}, comment="why") == after


def test_a_plan_that_cannot_be_changed_so_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "trainwiz.yaml"
    file.write_text("batch: &b\n  per_device_batch_size: &n 8\n  sequence_length: *n\n")
    with pytest.raises(UsageError, match=r"cannot be edited in place|invalid values"):
        files.edited(file, {"batch.per_device_batch_size": 4}, comment="why")


# --- the command


def test_there_must_be_a_failure_to_mend(tmp_path: Path) -> None:
    folder = make(tmp_path / "p", REGRESSION)
    done = trainwiz("launch", str(folder), "--apply-fix")
    assert done.code == 2
    assert "no runs in" in done.err
    assert trainwiz("launch", "--apply-fix", "--config", "x.yaml", "x.py").code == 2


def failing(folder: Path, condition: str) -> None:
    """Let the model ask for more memory than any machine has, where the condition holds."""
    script = (folder / "task.py").read_text()
    mark = '        """Shapes: (samples, features) → (samples,)."""\n'
    assert script.count(mark) == 1
    (folder / "task.py").write_text(
        script.replace(
            mark,
            mark + '        self.calls = getattr(self, "calls", 0) + self.training\n'
            f"        if {condition}:\n            torch.empty(10**14)\n",
        )
    )


@pytest.mark.train
def test_out_of_memory_is_fixed_and_the_training_goes_on_exactly(tmp_path: Path) -> None:
    folder = make(tmp_path / "p", ALONE)
    whole = make(tmp_path / "whole", ALONE)
    assert launch(whole).code == 0
    failing(folder, "self.calls > 16 and len(inputs) > 2")
    done = launch(folder)
    assert done.code == 1
    assert "cause: the machine is out of host memory" in done.err
    assert "per_device_batch_size: 4 → 2" in done.err
    assert "16 = 2 × 8 × 1" in done.err
    assert f"trainwiz launch {folder} --apply-fix" in done.err
    card = done.err[done.err.index("suggested change to the plan") :].partition("all files of this run")[0]
    assert trainwiz("diagnose", str(folder)).out.endswith(card)
    before = (folder / "trainwiz.yaml").read_text()
    shown = launch(folder, "--apply-fix", "--dry-run")
    assert shown.code == 0
    assert "+  per_device_batch_size: 2" in shown.err
    assert (folder / "trainwiz.yaml").read_text() == before
    done = launch(folder, "--apply-fix")
    assert done.code == 0, done.err
    assert "resuming from" in done.out
    assert trainwiz("check", str(folder)).code == 0
    assert losses(folder) == pytest.approx(losses(whole)[3:], abs=1e-5)
    assert "# default" in (folder / "trainwiz.yaml").read_text()
    again = launch(folder, "--apply-fix")
    assert again.code == 2
    assert "did not fail" in again.err


@pytest.mark.train
def test_an_edited_script_is_never_overwritten_by_a_fix(tmp_path: Path) -> None:
    folder = make(tmp_path / "p", ALONE)
    failing(folder, "len(inputs) > 2")
    script = (folder / "train.py").read_text()
    computed = script.replace("per_device_batch_size: int = 4", "per_device_batch_size: int = 2 + 2")
    assert computed != script
    (folder / "train.py").write_text(computed)
    before = (folder / "trainwiz.yaml").read_text()
    assert launch(folder).code == 1
    done = launch(folder, "--apply-fix")
    assert done.code == 1
    assert "files that you edited: train.py; nothing was written" in done.err
    assert f"trainwiz update {folder} --set batch.per_device_batch_size=2" in done.err
    assert ((folder / "train.py").read_text(), (folder / "trainwiz.yaml").read_text()) == (computed, before)
    # An edit that is not about the fix stays, and the fix is applied.
    (folder / "train.py").write_text(script + "# mine\n")
    assert launch(folder, "--apply-fix").code == 0
    fixed = script.replace("per_device_batch_size: int = 4", "per_device_batch_size: int = 2")
    accumulated = fixed.replace("gradient_accumulation_steps: int = 4", "gradient_accumulation_steps: int = 8")
    assert (folder / "train.py").read_text() == accumulated + "# mine\n"


def test_a_change_that_a_rule_forbids_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwiz.workflows.launch import plan_fix

    zero = plans.with_changes(
        BASE,
        {
            "strategy.kind": "deepspeed",
            "strategy.zero_stage": 2,
            "machine.num_processes": 2,
            "batch.per_device_batch_size": 1,
            "batch.real_batch_size": 8,
            "batch.gradient_accumulation_steps": 4,
        },
    )
    forbidden = lambda p, *_: {("TW300", "strategy")} if p.strategy.zero_stage == 3 else set()  # noqa: E731
    monkeypatch.setattr(plan_fix, "_errors", forbidden)
    found = plan_fix.solved(zero, Path(), None, SimpleNamespace(plan_change="smaller_micro_batch"))  # type: ignore[arg-type]
    assert found is not None
    assert dict(found[0].changes) == {"strategy.offload_optimizer_device": "cpu"}


def test_a_change_says_what_it_saves(tmp_path: Path) -> None:
    """The forecast peak before and after; nothing is said of a change that saves nothing."""
    from trainwiz.workflows.launch.plan_fix import saved_memory

    large = {"batch.per_device_batch_size": 8, "batch.real_batch_size": 16, "batch.gradient_accumulation_steps": 1}
    plan = plans.with_changes(BASE, {**large, "machine.num_processes": 2})
    small = {"batch.per_device_batch_size": 4, "batch.gradient_accumulation_steps": 2}
    changed = plans.with_changes(plan, small)
    saved = saved_memory(plan, changed, tmp_path, Machine())
    assert saved is not None
    assert str(saved).startswith("forecast peak of each rank: ")
    before, after = re.findall(r"([\d.]+) MiB", str(saved))
    assert float(after) < float(before)
    gpus = Machine(gpus=(Gpu(index=0, name="NVIDIA L4", memory_bytes=24 * 2**30),))
    on_gpu = [plans.with_changes(each, {"machine.device": "cuda"}) for each in (plan, changed)]
    assert str(saved_memory(on_gpu[0], on_gpu[1], tmp_path, gpus)).endswith(", of 24.0 GiB")
    assert saved_memory(changed, plan, tmp_path, Machine()) is None
