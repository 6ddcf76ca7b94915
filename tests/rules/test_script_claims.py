"""The manual of the rules on scripts against the engines: what it says happens, happens on two gloo ranks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import projects
import pytest
import test_claims
import warm

from trainwiz import rules
from trainwiz.finding import Level
from trainwiz.rules import proofs

pytestmark = pytest.mark.train

CHILD = Path(__file__).parents[1] / "engine_children" / "script_claims.py"
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
    "tw715_gradients_add_up": [-6.0, -3.0],
    "tw716_a_second_step_is_refused": ["", "step() has already been called since the last update()."],
    "tw718_the_bare_model_learns_on_each_rank_alone": [[0.0, 1.0], [0.5, 0.5]],
    "tw719_739_what_the_trainer_says": [
        "Trying to backward through the graph a second time (or ",
        "Older.compute_loss() got an unexpected keyword argument",
    ],
    "tw771_the_optimizers_own_step_takes_scaled_gradients": [65536.0, 1.0],
    "tw725_each_micro_batch_is_an_update": [[-0.25, -0.5, -0.75, -1.0], [0.0, 0.0, 0.0, -1.0]],
    "tw737_an_optimizer_from_before_moves_nothing": [4.0, 0.0],
    "tw738_an_unprepared_loader_gives_everything": [8, 4],
    # Of 16 samples on two ranks: with a DistributedSampler under prepare, and without.
    "tw784_samples_that_are_split_twice_are_not_seen": [8, 16],
    "tw745_a_sampler_and_shuffle_exclude_each_other": "sampler option is mutually exclusive with shuffle",
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


REFUSED = "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2"
DEEPSPEED: dict[str, Any] = {
    "tw711_torch_clips_nothing_under_deepspeed": [8.0, 8.0],
    "tw729_no_sync_is_refused": REFUSED,
}
"""The same, of DeepSpeed's engine on one rank."""
BOOSTING = {
    "731_gemini_fp32": "AssertionError: precision fp32 is not supported",
    "731_low_level_zero_fp8": "AssertionError: LowLevelZeroPlugin only supports ['fp16', 'bf16', 'fp32'] training",
    "731_booster_bf16": "TypeError: Can't instantiate abstract class BF16MixedPrecision",
    "731_booster_none": "",
    "732_low_level_zero_3": "AssertionError: LowLevelZeroPlugin only supports stage 1/2 training",
    "732_hybrid_3": "AssertionError: ",
    "732_hybrid_2": "",
    "733_gemini_adamw": "AssertionError: You should use an optimizer in the available list",
}
"""How Colossal-AI's plugins stop."""
# What a weight seems to be after each of two backward passes, and after the update: untold, and told of both.
GEMINI = {"tw734_gradients_take_the_place_of_weights": [[3.0, 1.0, -0.5], [0.0, 0.0, -0.8]]}
ON_STANDIN = {
    "TRAINWIZ_COLOSSALAI_STANDIN": "cpu",
    "PYTHONPATH": projects.python_path(Path(__file__).parents[1] / "standin_colossalai"),
}
"""What refuses a precision or a stage has not looked at the device yet, so that one server has ranks for all."""
COLOSSALAI = Path(__file__).parents[2] / ".venv-colossalai" / "bin" / "python"


def run(
    child: Path, *arguments: str, size: int = 1, python: Path = Path(sys.executable), **environ: str
) -> dict[str, Any]:
    """What rank 0 prints of a program on so many ranks."""
    env = {"CUDA_VISIBLE_DEVICES": "", **environ}
    ended = warm.run(Path.cwd(), [str(child), *arguments], size, env=env, python=str(python), seconds=540)
    assert ended[0].code == 0, ended[0].err
    answers = json.loads(ended[0].out.splitlines()[-1])
    assert isinstance(answers, dict)
    return answers


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(CHILD, str(tmp_path_factory.mktemp("claims")), size=2, ACCELERATE_USE_CPU="true")


def test_each_claim_is_asked(claims: dict[str, Any]) -> None:
    assert claims.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_claim(claims: dict[str, Any], name: str) -> None:
    assert claims[name] in (EXPECTED[name], [EXPECTED[name], EXPECTED[name]])


def test_claims_about_deepspeed() -> None:
    assert run(CHILD.with_name("script_claims_deepspeed.py")) == DEEPSPEED


@pytest.mark.skipif(not COLOSSALAI.exists(), reason="no environment of Colossal-AI (make colossalai): NOT CHECKED")
def test_claims_about_colossalai() -> None:
    said = run(CHILD.with_name("boosting.py"), python=COLOSSALAI, **ON_STANDIN)
    assert said.keys() == BOOSTING.keys()
    for name, words in BOOSTING.items():
        assert said[name].startswith(words), name
        assert bool(said[name]) == bool(words), name


@pytest.mark.skipif(not COLOSSALAI.exists(), reason="no environment of Colossal-AI (make colossalai): NOT CHECKED")
def test_claims_about_colossalais_gemini() -> None:
    assert run(CHILD.with_name("gemini.py"), python=COLOSSALAI, **ON_STANDIN) == GEMINI


def test_tw756_names_are_no_numbers() -> None:
    assert max(f"checkpoint-{n}" for n in (100, 900, 1000)) == "checkpoint-900"


def test_what_is_called_proven_is_proven_here() -> None:
    """A claim's name begins with the ids of its rules: `tw720_721_722_…`."""
    elsewhere = (name for claims in test_claims.EXPECTED.values() for name in claims if name.startswith("tw7"))
    names = [*EXPECTED, *DEEPSPEED, "tw756_", *BOOSTING, *GEMINI, *elsewhere]
    shown = {f"TW{id}" for name in names for id in re.findall(r"(?<![a-z0-9])(\d{3})(?=_)", name.replace("tw", "", 1))}
    errors = {rule.id for rule in rules.of_scripts() if rule.level is Level.ERROR}
    assert {id for id in proofs.PROVEN if id.startswith("TW7")} == shown & errors
    assert errors == shown & errors
