"""A plan's own settings of DeepSpeed: what they may be, what becomes of them, and how they are given."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from plans import BASE, make
from projects import trainwiz

from trainwiz import plan as plans
from trainwiz.cli import run
from trainwiz.errors import PlanError
from trainwiz.plan import Plan
from trainwiz.render import deepspeed, plan_file
from trainwiz.store import plans as store

STAGE_2 = {"strategy.kind": "deepspeed", "strategy.zero_stage": 2, "precision.mixed_precision": "bf16"}


def made(**settings: object) -> Plan:
    return plans.with_changes(BASE, {**STAGE_2, "deepspeed": settings})


def test_they_stand_in_the_file_among_the_others() -> None:
    config = deepspeed.config(
        made(
            **{
                "zero_optimization.reduce_bucket_size": 7,
                "zero_optimization.offload_optimizer.ratio": 0.5,
                "activation_checkpointing.cpu_checkpointing": True,
                "data_types.grad_accum_dtype": None,
                "prescale_gradients": True,
            }
        )
    )
    assert config["zero_optimization"]["reduce_bucket_size"] == 7
    assert config["zero_optimization"]["stage"] == 2
    assert config["zero_optimization"]["offload_optimizer"] == {"ratio": 0.5}
    assert config["activation_checkpointing"] == {"cpu_checkpointing": True}
    assert config["data_types"] == {}
    assert config["prescale_gradients"] is True


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("train_batch_size", "'train_batch_size' is set by batch.real_batch_size; set that key instead"),
        ("bf16.enabled", "'bf16.enabled' is set by precision.mixed_precision; set that key instead"),
        ("tensor_parallel.autotp_size", "the training loop does not support the setting 'tensor_parallel.autotp_size'"),
        ("zero_optimization.", "does not support the setting 'zero_optimization.'"),
        ("fp16", "does not support the setting 'fp16'"),
    ],
)
def test_what_the_plan_decides_is_no_setting(path: str, words: str) -> None:
    with pytest.raises(PlanError) as error:
        made(**{path: 4})
    assert words in str(error.value)


def test_they_read_back_and_an_empty_section_is_not_shown(tmp_path: Path) -> None:
    plan = made(**{"zero_optimization.reduce_bucket_size": 7, "fp16.loss_scale": None, "aio.x": [1, "a"]})
    (tmp_path / "trainwiz.yaml").write_text(plan_file.text(plan, {}))
    assert store.read(tmp_path / "trainwiz.yaml") == plan
    assert "deepspeed:" not in plan_file.text(BASE, {})
    assert made().deepspeed == {}


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "p"
    given = [
        "--set",
        "strategy.zero_stage=2",
        "--set",
        "deepspeed.zero_optimization.reduce_bucket_size=200000000",
        "--set",
        "deepspeed.data_types.grad_accum_dtype=null",
        "--set",
        "deepspeed.aio.x=word",
    ]
    done = trainwiz("init", str(folder), "--defaults", "--yes", *given)
    assert done.code == 0, done.err
    for setting in given[2:]:
        assert setting in done.err
    config = json.loads((folder / "ds_config.json").read_text())
    assert config["zero_optimization"]["reduce_bucket_size"] == 200000000
    assert config["aio"] == {"x": "word"}
    before = (folder / "trainwiz.yaml").read_text()
    assert trainwiz("init", str(folder), "--defaults", "--yes").code == 0
    assert (folder / "trainwiz.yaml").read_text() == before
    assert run(["init", str(folder), "--defaults", "--yes", "--set", "deepspeed.pipeline.stages=2"]) == 2
    assert "the training loop does not support the setting 'pipeline.stages'" in capsys.readouterr().err


def test_patterns_are_cheap_to_compile() -> None:
    """The letters of all scripts, each up to hundreds of times, took 18 MB of each launcher."""
    patterns = re.findall(r"'pattern': (['\"].*?['\"])", str(Plan.__pydantic_core_schema__))
    assert len(patterns) > 20
    assert [pattern for pattern in patterns if re.search(r"\\[wd]", pattern)] == []


def test_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "deepspeed"]) == 0
    assert "null leaves a setting to DeepSpeed" in " ".join(capsys.readouterr().out.split())


def test_a_list_of_tokens_is_one_text_and_none_of_them_holds_a_comma() -> None:
    assert plans.with_changes(BASE, {"data.added_tokens": ["<a>", " <b> "]}).data.added_tokens == "<a>,<b>"
    for wrong in ("b,c", " ", 3):
        with pytest.raises(PlanError, match="is not a valid token"):
            plans.with_changes(BASE, {"data.added_tokens": ["<a>", wrong]})


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90m", 5400), ("12h", 43200), ("2d", 172800), ("12:30:00", 45000), ("1-12:00:05", 129605), ("36:00:00", 129600)],
)
def test_time_limits(written: str, seconds: int) -> None:
    assert make(cluster__time_limit=written).cluster.time_limit_seconds == seconds


@pytest.mark.parametrize(
    ("written", "parameters"), [("7b", 7_000_000_000), ("1.5B", 1_500_000_000), ("350M", 350_000_000), (12, 12)]
)
def test_the_size_of_a_model_as_its_name_says_it(written: object, parameters: int) -> None:
    assert make(model__parameters=written).model.parameters == parameters
