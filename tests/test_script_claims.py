"""The manual of the rules on scripts against the engines: what it says happens, happens on two gloo ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.train

CHILD = Path(__file__).parent / "engine_children" / "script_claims.py"
EXPECTED: dict[str, Any] = {
    "tw701_a_collective_of_one_rank_ends_in_a_timeout": ["timeout", ""],
    "tw702_other_ranks_states_are_missing": [["random_states_0.pkl"], ["random_states_0.pkl", "random_states_1.pkl"]],
    "tw703_a_backward_pass_of_one_rank_ends_in_a_timeout": ["timeout", ""],
    "tw704_buffers_of_one_rank_end_in_a_timeout": [["", ""], ["", "waited"]],
    "tw705_a_prepared_loader_gives_a_share": [4],
    "tw706_gather_keeps_what_fills_up_the_last_batch": [8, 6],
    # Over four micro-batches: nobody divides, accelerate does, both do, loss.backward() under accelerate.
    "tw710_723_724_only_the_accelerator_divides": [4.0, 1.0, 0.25, 4.0],
    "tw712_scaled_gradients_are_clipped_to_nothing": [1.0, 65535.9],
    "tw713_clipping_each_time_is_another_gradient": [0.5, 1.0],
    "tw714_a_step_without_gradients": 0.0,
    "tw720_721_722_what_each_update_sees": [
        [1.0, 4.0, 4.0, 4.0, 1.0, 4.0, 4.0, 4.0],
        [1.0, 3.0, 3.0, 3.0, 3.0, 1.0, 3.0, 3.0, 3.0, 3.0],
        [4.0, 4.0, 4.0, 5.0, 4.0, 4.0],
    ],
    # After 6 updates of a schedule over 10, on two ranks: prepared, and stepped per micro-batch.
    "tw726_727_schedules_run_ahead": [-0.2, -0.2],
    "tw728_ranks_drift_apart": [[0.0, 1.0], [0.5, 0.5]],
    "tw730_two_passes_count_as_one": [2.0, 1.0],
}
"""What each claim gives on both ranks, or on rank 0 and rank 1 where those differ."""


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("claims")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_", "DS_"))}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = []
    for rank in ("0", "1"):
        environ = {**kept, **world, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true",
                   "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # fmt: skip
        command = [sys.executable, str(CHILD), str(folder)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        ranks.append(subprocess.Popen(command, env=environ, text=True, **pipes))  # type: ignore[call-overload]
    try:
        shown, problem = ranks[0].communicate(timeout=180)
        assert ranks[0].returncode == 0, problem
        ranks[1].communicate(timeout=30)
    finally:
        for rank_process in ranks:
            rank_process.kill()
            rank_process.wait()
    answers = json.loads(shown.splitlines()[-1])
    assert isinstance(answers, dict)
    return answers


def test_each_claim_is_asked(claims: dict[str, list[Any]]) -> None:
    assert claims.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_claim(claims: dict[str, list[Any]], name: str) -> None:
    assert claims[name] in (EXPECTED[name], [EXPECTED[name], EXPECTED[name]])
