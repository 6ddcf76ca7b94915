"""The manual of the rules against the engines: each claim is one that an engine itself made true in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwiz.plan import Plan
from trainwiz.render import training_files
from trainwiz.store import templates

CHILD = Path(__file__).parent / "engine_children" / "claims.py"
EXPECTED: dict[str, Any] = {
    "tw104_without_cuda_each_rank_is_alone": [2, 1, True],
    "tw115_a_missing_tracker_is_dropped": [True, 0],
    "tw123_a_lock_is_waited_for": [True, False],
    "tw131_torch_compile_needs_a_compiler": "InductorError: InvalidCxxCompiler: No working C++ compiler found",
    "tw201_accelerate_says_fp16_and_computes_fp32": ["fp16", "torch.float32"],
    "tw202_fp8_without_a_library_stops": "ValueError: Using `fp8` precision requires",
    "tw203_emulated_bf16_counts_as_supported": True,
    "tw301_nobody_agrees_on_a_stage": [2, 0],
    "tw303_no_starts_one_process": [2],
    "tw308_transformers_shards_whatever_the_flag_says": [False, True, False],
    "tw316_other_optimizers_become_adam": ["Adam", "Adam", "Adam", "Adagrad"],
    "tw305_fsdp_is_not_enabled_on_the_cpu": ["DistributedType.NO", 1],
    "tw317_deepspeed_stops_at_an_unknown_setting": "ValidationError: 1 validation error for DeepSpeedZeroConfig",
    "tw401_deepspeed_stops_at_a_wrong_product": "AssertionError: Check batch related parameters. train_batch_size",
    "tw403_a_learned_position_too_many": "IndexError: index out of range in self",
    "tw413_the_rate_arrives_too_late": [0.5, 99],
    "tw416_absent_clipping_is_1": 1.0,
    "tw611_three_ranks_on_two_machines_are_two": "1",
    "tw612_one_rank_on_two_machines_is_none": "0",
}
"""What each claim gives; of an error, how it begins."""


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("claims")
    for artifact in training_files(Plan(), templates.load()):
        (folder / artifact.path).write_text(artifact.text)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_", "DS_"))}
    done = subprocess.run([sys.executable, str(CHILD), str(folder)], capture_output=True, text=True, timeout=540,
                          env={**environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}, cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(results, dict)
    return results


def test_each_claim_is_asked(claims: dict[str, Any]) -> None:
    assert claims.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_claim(claims: dict[str, Any], name: str) -> None:
    if isinstance(EXPECTED[name], str):
        assert str(claims[name]).startswith(EXPECTED[name])
    else:
        assert claims[name] == EXPECTED[name]
