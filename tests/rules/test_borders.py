"""Values at the border of each key of DeepSpeed's file: what stops the engine is reported, and what is right is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
import yaml

from trainwiz import config
from trainwiz.engines import accelerate, deepspeed
from trainwiz.engines import deepspeed_types as types
from trainwiz.finding import Level
from trainwiz.workflows.check.configurations import Files

CHILD = Path(__file__).parents[1] / "engine_children" / "borders.py"
VALUES: tuple[Any, ...] = (0, -1, 1, 0.5, "", "x", "1", "false", True, False, None, [], {}, 1e30)
BETAS: tuple[Any, ...] = (0.9, [0.9], [0.9, 1.0], [0.9, 0.999, 0.9], [-0.1, 0.9], ["0.9", "0.999"], [0.9, 0.95])
BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}
ADAM: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
AROUND: dict[str, dict[str, Any]] = {
    "fp16": {"fp16": {"enabled": True}},
    "bf16": {"bf16": {"enabled": True}},
    "zero_optimization.offload_optimizer": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
    "zero_optimization.offload_param": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "WarmupLR": {"warmup_num_steps": 10, "warmup_max_lr": 1e-3, "warmup_min_lr": 0},
    "WarmupDecayLR": {"warmup_num_steps": 10, "warmup_max_lr": 1e-3, "warmup_min_lr": 0, "total_num_steps": 100},
    "WarmupCosineLR": {"warmup_num_steps": 10, "total_num_steps": 100},
    "OneCycle": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3},
    "LRRangeTest": {},
}
TORCH_ALONE = {"capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused", "maximize"}
"""Parameters of torch's AdamW, whose effect depends on the device."""
NOT_FOUND = {
    # GDS stops on this machine, which has no GPU.
    ("aio.use_gds", "1"),
    ("aio.use_gds", "true"),
    # Truth values that are written as a number, and a type of a block that is off.
    ("bf16.bf16_optimizer_states", "1"),
    ("bf16.bf16_optimizer_states", '"1"'),
    ("torch_autocast.dtype", "null"),
    # So many steps that they are no longer whole.
    ("scheduler.params.lr_range_test_step_size", "1e+30"),
    ("scheduler.params.warmup_num_steps", "1e+30"),
}
CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "optimizer.type": {"optimizer": {"params": {"lr": 1e-4}}},
    "scheduler.type": {**ADAM, "scheduler": {"params": {"warmup_num_steps": 1}}},
    "optimizer": {"optimizer": {"type": "AdamW"}},
    "optimizer.params.lr": {"optimizer": {"type": "AdamW", "params": {}}},
    "scheduler.params.total_num_steps": {
        **ADAM,
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100, "total_num_steps": 10}},
    },
    "scheduler.params.warmup_min_lr": {
        **ADAM,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-2, "warmup_max_lr": 1e-3}},
    },
    "scheduler.params.cycle_min_lr": {
        **ADAM,
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-2, "cycle_max_lr": 1e-3}},
    },
    "gradient_clipping": {"gradient_clipping": -1},
    "zero_optimization.offload_param": {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
}
"""What the engine trains with in silence, or nearly so: by the key that is wrong."""


def keys() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key, with what must stand around it."""
    for key in sorted(deepspeed.TOP_LEVEL_KEYS - deepspeed.REMOVED_IN_0_19 - types.BLOCKS):
        yield key, {}
    blocks = {**deepspeed.STRICT_BLOCKS, **deepspeed.MILD_BLOCKS, "zero_optimization": deepspeed.ZERO_KEYS}
    for block, names in blocks.items():
        for key in sorted(f"{block}.{name}" for name in names if block not in ("optimizer", "scheduler")):
            at_3 = key.startswith("zero_optimization.stage3")
            yield key, AROUND.get(block, {"zero_optimization": {"stage": 3}} if at_3 else {})
    for name, parameters in deepspeed.SCHEDULERS.items():
        for key in sorted(parameters):
            yield f"scheduler.params.{key}", {**ADAM, "scheduler": {"type": name, "params": SCHEDULES[name]}}
    for key in sorted(deepspeed.OPTIMIZER_PARAMETERS["adamw"] - TORCH_ALONE):
        yield f"optimizer.params.{key}", ADAM


def with_value(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(values)
    *above, last = path.split(".")
    here = changed
    for key in above:
        here = here.setdefault(key, {})
    here[last] = value
    return changed


CASES = [
    (key, value, with_value({**BASE, **around}, key, value))
    for key, around in keys()
    for value in (BETAS if key.endswith("betas") else VALUES)
]


def found(values: dict[str, Any]) -> dict[Level, list[str]]:
    document = config.read("ds.json", json.dumps(values))
    files = Files(documents={"ds.json": document}, versions={"deepspeed": deepspeed.TRIED, "accelerate": "1.15.0"})
    levels: dict[Level, list[str]] = {level: [] for level in Level}
    for finding in files.findings([], []):
        levels[finding.level].append(finding.where)
    return levels


@pytest.fixture(scope="module")
def stops() -> list[str]:
    """What the engine stopped with in each case."""
    configs = json.dumps([values for _, _, values in CASES])
    done = warm.child(CHILD, text=configs)
    assert done.code == 0, done.err
    answers: list[str] = json.loads(done.out.splitlines()[-1])
    return answers


def is_legal(key: str, value: Any) -> bool:
    """Whether a value has the type that its key is for; where the engine looks late, or never, others pass."""
    if key in types.BARE_TRUTH | types.TRUTH:
        return value in (True, False, 0, 1, None) and not isinstance(value, float)
    if key in types.LISTS:
        return isinstance(value, list)
    if key in types.WORDS or key in deepspeed.DTYPES_OF:
        return False
    return type(value) in (int, float) and 0 < value < 1e9


def test_what_stops_the_engine_is_found(stops: list[str]) -> None:
    stopping = [case for case, stopped in zip(CASES, stops, strict=True) if stopped]
    assert len(stopping) > 1400
    missed = {(key, json.dumps(value)) for key, value, values in stopping if not found(values)[Level.ERROR]}
    # Warnings, since accelerate fills these.
    warned = {("steps_per_print", "0"), ("steps_per_print", "false"), ("train_micro_batch_size_per_gpu", "null")}
    assert missed - warned - NOT_FOUND == set()
    assert len(missed) < 0.01 * len(stopping)


def test_what_is_right_is_no_error(stops: list[str]) -> None:
    wrong = [
        (key, value, found(values)[Level.ERROR])
        for (key, value, values), stopped in zip(CASES, stops, strict=True)
        if not stopped and is_legal(key, value) and found(values)[Level.ERROR]
    ]
    # What ZeRO 2 refuses later, as the cases of their rules show; half a sample, and half a rank.
    later = {"zero_optimization.allgather_bucket_size", "bf16.bf16_master_weights_and_grads", "sequence_parallel_size"}
    assert {key for key, _, _ in wrong} - later <= types.COUNTS


def test_a_word_that_counts_as_true_is_not_made_false_unasked(stops: list[str]) -> None:
    read = {
        key: not stopped
        for (key, value, _), stopped in zip(CASES, stops, strict=True)
        if value == "false" and key in types.BARE_TRUTH
    }
    assert {key for key, counts_as_true in read.items() if not counts_as_true} - {"aio.use_gds"} <= types.NO_WORD
    for key, value, values in CASES:
        if value == "false" and key in read:
            document = config.read("ds.json", json.dumps(values))
            found = Files(documents={"ds.json": document}, versions={"deepspeed": deepspeed.TRIED}).findings([], [])
            fixes = [finding.fix for finding in found if finding.where == key and finding.fix]
            assert all(fix.safe is (key in types.NO_WORD) for fix in fixes if fix.changes == {key: False}), key


PLAIN: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "num_processes": 4,
    "num_machines": 1,
    "mixed_precision": "bf16",
}
FSDP: dict[str, Any] = {**PLAIN, "distributed_type": "FSDP"}
WRAPPED = {"fsdp_state_dict_type": "SHARDED_STATE_DICT"}
FILES: dict[str, dict[str, Any]] = {
    "": PLAIN,
    "deepspeed_config": {
        **PLAIN,
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3, "gradient_clipping": 1.0, "zero3_save_16bit_model": True},
    },
    "dynamo_config": {**PLAIN, "dynamo_config": {"dynamo_backend": "INDUCTOR"}},
    "fsdp_config 1": {
        **FSDP,
        "fsdp_config": {**WRAPPED, "fsdp_version": 1, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"},
    },
    "fsdp_config 2": {
        **FSDP,
        "fsdp_config": {**WRAPPED, "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    },
    "parallelism_config": {
        **FSDP,
        "fsdp_config": {**WRAPPED, "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        "parallelism_config": {"parallelism_config_dp_shard_size": 4},
    },
}
"""A file for each block, in which one key after the other gets another value."""
NOT_FOUND_IN_YAML = {
    ("deepspeed_config.gradient_accumulation_steps", "1e+30"),
    # The model is not known, and has no class of that name.
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
}


def of_accelerate() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for title, values in FILES.items():
        block = title.partition(" ")[0]
        inside = {key for key in accelerate.CHECKED if key.partition(".")[0] == block and "." in key}
        for key in sorted(inside or {key for key in accelerate.CHECKED if "." not in key} - set(accelerate.BLOCKS)):
            yield from ((key, value, with_value(values, key, value)) for value in VALUES)


def found_in_yaml(values: dict[str, Any]) -> dict[Level, list[str]]:
    document = config.read("a.yaml", yaml.safe_dump(values, sort_keys=False))
    versions = {"deepspeed": deepspeed.TRIED, "accelerate": accelerate.TRIED}
    findings = Files(documents={"a.yaml": document}, versions=versions).findings([], [])
    return {level: [f.where for f in findings if f.level is level] for level in Level}


def test_what_stops_accelerate_is_found(tmp_path: Path) -> None:
    cases = list(of_accelerate())
    asked = json.dumps([values for _, _, values in cases])
    done = warm.child(CHILD.with_name("borders_accelerate.py"), str(tmp_path), text=asked)
    assert done.code == 0, done.err
    stopped = json.loads(done.out.splitlines()[-1])
    missed, wrong = set(), set()
    for (key, value, values), said in zip(cases, stopped, strict=True):
        levels = found_in_yaml(values)
        if said and not (levels[Level.ERROR] or levels[Level.WARNING]):
            missed |= {(key, json.dumps(value))} if key not in NOT_FOUND_IN_YAML else set()
        if not said and levels[Level.ERROR] and type(value) in (int, bool) and value == 1:
            wrong.add((key, json.dumps(value)))
    assert sum(map(bool, stopped)) > 400
    assert missed - NOT_FOUND_IN_YAML == set()
    assert wrong <= {("main_process_port", "true")}


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_contradictions_are_found(key: str) -> None:
    levels = found({**BASE, **CONTRADICTIONS[key]})
    assert levels[Level.ERROR] or levels[Level.WARNING]


def test_the_keys_that_are_covered() -> None:
    """The number in docs/rules.md: all keys but old names, free text, and what only other programs read."""
    every = {key for key, _ in keys()}
    assert len(types.CHECKED & every) > 0.8 * len(every)
