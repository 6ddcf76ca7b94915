"""The manual of the rules against the engines: each claim is one that an engine itself made true in a child process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import warm
from plans import BASE
from projects import Done, environment

from trainwiz.render import training_files
from trainwiz.store import templates

CHILDREN = Path(__file__).parents[1] / "engine_children"
NOBODY_CAME = "DistStoreError: Timed out after SOME seconds waiting for clients. 1/2 clients joined."
NOBODY_THERE = "DistNetworkError: The client socket has timed out after 1000ms while trying to connect to "
# docs/decisions/rules.md: Testing the rules showed that eleven manuals were wrong
EXPECTED: dict[str, dict[str, Any]] = {
    "claims.py": {
        "tw104_tw105_without_cuda_each_rank_is_alone": [2, 1, True],
        "tw115_a_missing_tracker_is_dropped": [True, 0],
        "tw123_a_lock_is_waited_for": [True, False],
        "tw131_torch_compile_needs_a_compiler": "InductorError: InvalidCxxCompiler: No working C++ compiler found",
        "tw201_accelerate_says_fp16_and_computes_fp32": ["fp16", "torch.float32"],
        "tw205_fp8_without_torchao_stops": "ModuleNotFoundError: No module named 'torchao'",
        "tw203_emulated_bf16_counts_as_supported": True,
        "tw301_nobody_agrees_on_a_stage": [2, 0],
        "tw303_no_starts_one_process": [2],
        "tw308_transformers_shards_whatever_the_flag_says": [False, True, False],
        "tw557_zero_init_takes_no_device_map": "ValueError: DeepSpeed Zero-3 is not compatible with passing a `de",
        "tw316_other_optimizers_become_adam": ["Adam", "Adam", "Adam", "Adagrad"],
        "tw305_fsdp_is_not_enabled_on_the_cpu": ["DistributedType.NO", 1],
        "tw317_deepspeed_stops_at_an_unknown_setting": "ValidationError: 1 validation error for DeepSpeedZeroConfig",
        "tw401_deepspeed_stops_at_a_wrong_product": "AssertionError: Check batch related parameters. train_batch_size",
        "tw403_a_learned_position_too_many": "IndexError: index out of range in self",
        "tw413_the_rate_arrives_too_late": [0.5, 99],
        "tw416_absent_clipping_is_1": 1.0,
        # What is there while the third checkpoint is written: by accelerate, by the generated script.
        "tw501_a_limit_of_0_is_none_or_all": [["checkpoint_2"], ["checkpoint-00000001", "checkpoint-00000002"]],
        "tw611_three_ranks_on_two_machines_are_two": "1",
        "tw612_one_rank_on_two_machines_is_none": "0",
    },
    "gpu_claims.py": {
        "tw107_tw601_ranks_share_the_gpus_that_are_seen": ["cuda:0", "cuda:1", "cuda:0", "cuda:0"],
        "tw108_torch_says_that_it_has_no_kernels": [[False, False], [True, True], [True, True], [True, True]],
        "tw204_fp8_becomes_fp16": ["fp8", "fp16"],
        "tw221_triton_compiles_for_volta_and_newer": [
            "TritonMissing: ",
            "GPUTooOldForTriton: Found GPU which is too old to be supported by the triton GPU compiler",
        ],
        "tw760_a_fixed_gpu_is_that_of_every_rank": [["cuda:0", "cuda:0"], ["cuda:0", "cuda:1"]],
    },
    "meeting_claims.py": {
        "an_address_and_a_port_are_enough": ["met", "met"],
        "tw613_without_an_address_each_is_alone": [NOBODY_CAME, f"{NOBODY_THERE}(127.0.0.1, "],
        "tw614_each_has_a_loopback_of_its_own": [
            NOBODY_CAME,
            f"{NOBODY_THERE}(127.0.0.1, ",
            NOBODY_CAME,
            f"{NOBODY_THERE}(localhost, ",
        ],
        "tw615_any_port_is_another_port": [NOBODY_CAME, f"{NOBODY_THERE}(127.0.0.1, 0)"],
        # The first ends; the second still waits when its time is over.
        "tw616_a_port_that_is_taken": [
            "DistNetworkError: The server socket has failed to listen on any local network address. port: ",
            True,
            False,
        ],
    },
    "deepspeed_claims.py": {
        "tw121_an_op_is_built_by_a_compiler": "cpu_adam: c++: not found",
        "tw122_an_op_is_built_with_the_headers_of_python": "cpu_adam: fatal error: Python.h: No such file or directory",
        "tw312_nvme_has_no_default_place": [
            "TypeError: expected str, bytes or os.PathLike object, not NoneType",
            'AssertionError: "nvme_path" in DeepSpeed Config cannot be None',
            "",
        ],
        "tw315_stage_0_moves_nothing_to_the_host": [
            True,
            False,
            "AssertionError: CPUAdam param is on meta and must be 'cpu', make sure you enabled 'offload_optimizer'",
        ],
        "tw521_a_file_that_is_gone": "ValueError: Expected a string path to an existing deepspeed config",
    },
    "memory_claims.py": {
        # With less than the estimate per parameter, and with more.
        "tw321_tw324_weights_gradients_and_moments": ["no memory", "done", "no memory", "done"],
        "tw323_an_offloaded_optimizer": ["no memory", "done"],
        "tw328_a_model_that_is_built": ["no memory", "done"],
        "tw325_what_a_forward_pass_keeps": ["done", "no memory", "done"],
        "tw503_a_checkpoint_on_a_full_disk": "SafetensorError: Error while serializing: I/O error: No space left",
        "tw518_a_worker_without_shared_memory": "RuntimeError: RuntimeError: unable to allocate shared memory(shm)",
    },
}
"""By child: what each claim gives; of an error, how it begins."""
# docs/decisions/rules.md: Tests of the rules fake only the lowest layer
SMALL_MOUNTS = (
    "unshare",
    "-m",
    "sh",
    "-c",
    'mount -t tmpfs -o size=4m tmpfs /dev/shm && mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@" --full "$0"',
)
NEED_MOUNTS = ("tw503_a_checkpoint_on_a_full_disk", "tw518_a_worker_without_shared_memory")
CASES = [(child, name) for child, claims in EXPECTED.items() for name in claims]


pytestmark = pytest.mark.usefixtures("operators")


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each child saw, two of them at a time."""
    folder, small = tmp_path_factory.mktemp("claims"), tmp_path_factory.mktemp("small")
    for artifact in training_files(BASE, templates.load()):
        (folder / artifact.path).write_text(artifact.text)
    before = {
        child: (*SMALL_MOUNTS, str(small)) if child == "memory_claims.py" and may_mount() else () for child in EXPECTED
    }
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(EXPECTED, pool.map(lambda child: asked(child, folder, before[child]), EXPECTED), strict=True))


def may_mount() -> bool:
    if os.getuid() != 0 or not shutil.which("unshare"):
        return False
    tried = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=4m tmpfs /dev/shm"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def asked(child: str, folder: Path, before: tuple[str, ...]) -> dict[str, Any]:
    settings = {"CUDA_VISIBLE_DEVICES": ""}
    if child != "memory_claims.py":
        done = warm.child(CHILDREN / child, str(folder), env=settings)
    else:  # it counts the bytes of a process
        # Each tensor has a mapping of its own: what a heap keeps between them depends on which thread freed it.
        settings |= {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
        command = [*before, sys.executable, str(CHILDREN / child), str(folder)]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=540, env=environment(settings), cwd=folder
        )
        done = Done(ended.returncode, ended.stdout, ended.stderr)
    assert done.code == 0, done.err
    results = json.loads(done.out.splitlines()[-1])
    assert isinstance(results, dict)
    return results


@pytest.mark.parametrize("child", EXPECTED)
def test_each_claim_is_asked(claims: dict[str, dict[str, Any]], child: str) -> None:
    assert claims[child].keys() == EXPECTED[child].keys()


@pytest.mark.parametrize(("child", "name"), CASES, ids=[name for _, name in CASES])
def test_claim(claims: dict[str, dict[str, Any]], child: str, name: str) -> None:
    said = claims[child][name]
    if name in NEED_MOUNTS and said is None:
        pytest.skip("needs root to mount a small disk and a small /dev/shm")
    assert_alike(said, EXPECTED[child][name])


def assert_alike(said: Any, expected: Any) -> None:
    """Equal; of a sentence its beginning."""
    if isinstance(expected, list):
        assert isinstance(said, list)
        assert len(said) == len(expected), said
        for mine, theirs in zip(said, expected, strict=True):
            assert_alike(mine, theirs)
    elif isinstance(expected, str) and expected:
        assert str(said).startswith(expected)
    else:
        assert said == expected
